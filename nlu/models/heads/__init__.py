"""What a task puts on an encoder: vectors of sequences or units to logits."""
