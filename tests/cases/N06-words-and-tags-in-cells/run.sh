python -m nlu.preprocess task=tag model=static data=files data.train=train.csv data.dev=train.csv 'data.fields={tokens: sentence, tags: word_labels}'
