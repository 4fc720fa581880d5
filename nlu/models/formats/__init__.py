"""Checkpoint formats that weights are read from, all under one naming."""
