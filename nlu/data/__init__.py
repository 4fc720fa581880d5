"""From a file of any scheme to packed batches: sources, readers, targets, tokenizing, store, order, collate."""
