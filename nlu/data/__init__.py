"""From a file of any scheme to packed batches: sources, readers, tokenizing, store, sampler, collate, in that order."""
