python -m nlu.preprocess task=tag model=static data=files data.train=train.jsonl data.dev=train.jsonl
