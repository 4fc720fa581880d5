python -m nlu.train task=regress model=static data=files data.train=train.csv data.dev=dev.csv trainer.max_duration=4st trainer.eval_interval=2st hydra.run.dir=out
