python -m nlu.preprocess task=multilabel model=static data=files data.train=train.tsv data.dev=train.tsv 'data.fields={text: body, label: topics}'
