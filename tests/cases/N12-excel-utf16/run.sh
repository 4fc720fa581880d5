python -m nlu.preprocess model=static data=files data.train=unicode.txt data.format=tsv
