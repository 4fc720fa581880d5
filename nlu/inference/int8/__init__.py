"""Predicting in int8 on a CPU: the layers of a loaded encoder are replaced, which itself knows nothing of it."""
