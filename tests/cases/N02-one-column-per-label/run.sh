python -m nlu.preprocess task=multilabel model=static data=files data.train=train.csv data.dev=train.csv 'data.fields={text: comment_text, label: [toxic, obscene, threat]}'
