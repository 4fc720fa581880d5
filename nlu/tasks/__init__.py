"""What a task adds to the one loop: the layout of its rows and the scores of its outputs."""
