"""Searches: the trial of a job, storages, spaces, pruners, who runs a study, the summary."""
