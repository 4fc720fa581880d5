"""Which trial gets a free slot, and for how long: the schedulers of searches, pure functions of the trials so far."""
