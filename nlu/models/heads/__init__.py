"""Heads: vectors of sequences or units to logits."""
