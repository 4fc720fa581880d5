python -m nlu.preprocess model=static data=files data.train=train.jsonl.gz data.dev=train.jsonl.gz 'data.fields={text: review.body, label: review.stars}'
