"""Encoders over packed batches, heads on them, and the checkpoint formats they are read from."""
