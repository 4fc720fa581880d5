python -m nlu.preprocess model=static data=files data.train=train.csv data.dev=dev.csv data.on_bad_row=skip
