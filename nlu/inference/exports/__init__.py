"""The formats to which a trained run can be exported: how each is written, and read back.

Axes: N texts, T tokens of the longest of them, C outputs, D width, M rows of pooled vectors.
"""
