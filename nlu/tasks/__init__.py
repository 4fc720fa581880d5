"""Tasks: the layout of rows, the terms of the loss, predictions and scores. The training loop is the same for all."""
