"""Launchers that hand jobs to a queue: this machine's, Slurm's, PAI's. One run, a grid or the trials of a search."""
