"""Encoders over packed batches: words to vectors of tokens and of sequences."""
