python -m nlu.preprocess task=tag model=static data=files data.train=project.json data.dev=project.json 'data.fields={text: text, spans: label}'
