"""Hydra's grid, with every job checked before the first one starts: the default of `--multirun`."""
