"""Searches: the trial of a job, storages, spaces, pruners, the lease, the summary."""
