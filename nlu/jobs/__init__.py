"""Start runs: on one device or several here, by torchrun, or as the job of a launcher."""
