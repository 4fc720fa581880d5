"""The checks of doctor: whether this machine can run nlu, and why the score of a run may differ."""
