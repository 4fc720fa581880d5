python -m nlu.preprocess task=tag model=static data=files data.train=admin.jsonl data.dev=admin.jsonl
