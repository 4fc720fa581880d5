python -m nlu.preprocess model=static data=files data.train=frame.json data.dev=frame.json
