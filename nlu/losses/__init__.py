"""Losses return a sum, never a mean, so that accumulation and uneven ranks weigh every row alike."""
