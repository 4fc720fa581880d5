"""Where the numbers of a run are shown beside its own records: TensorBoard, MLflow, Weights & Biases."""
