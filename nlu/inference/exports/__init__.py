"""A trained run in the formats of others: what each is written by, and read back by.

Axes: N texts, T tokens of the longest of them, C outputs, D width, M rows of pooled vectors.
"""
