"""Driving a run: the step loop, its evaluations, its checkpoints and what it writes down."""
