"""Methods that learn from trained runs: their soft predictions, their hidden states, or relations of their tokens."""
