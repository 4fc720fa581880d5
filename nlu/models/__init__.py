"""Encoders over packed batches, the heads on them, and the checkpoint formats they are read from."""
