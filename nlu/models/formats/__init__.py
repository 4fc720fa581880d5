"""Formats of checkpoints, all converted to the same names."""
