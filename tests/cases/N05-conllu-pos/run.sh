python -m nlu.preprocess task=tag model=static data=files data.train=train.conllu data.dev=train.conllu data.format=conll 'data.fields={tokens: 1, tags: 3}'
