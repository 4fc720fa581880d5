"""What a trained run is used for: found by one reference, loaded without its data, asked for predictions and scores."""
