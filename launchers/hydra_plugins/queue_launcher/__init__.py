"""Launchers that hand jobs to a queue: a run, a grid or the trials of a search. Here are this machine's and Slurm's."""
