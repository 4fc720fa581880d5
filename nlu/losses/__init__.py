"""Losses return sums, not means, so that every row has the same weight with accumulation and uneven ranks."""
