python -m nlu.preprocess model=static data=files data.train=train.parquet data.dev=train.parquet
