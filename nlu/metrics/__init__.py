"""Scores of whole sets, computed once from per-example rows, never averaged over batches."""
