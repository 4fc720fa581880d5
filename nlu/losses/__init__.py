"""Losses return a sum and a count, never a mean, so that accumulation and uneven ranks weigh every row alike."""
