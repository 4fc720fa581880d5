"""Trackers, which show the numbers of a run in other tools: TensorBoard, MLflow, Weights & Biases."""
