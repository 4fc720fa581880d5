"""`hydra/sweeper=hyperband`: optuna's samplers and pruners over any launcher, one launch for each trial."""
