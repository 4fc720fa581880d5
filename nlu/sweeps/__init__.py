"""Searches: what a job knows of its trial, where trials are kept, what is searched and pruned, what is left after."""
