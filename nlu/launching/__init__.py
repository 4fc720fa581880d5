"""How runs start: on one device or several here, by torchrun, or as the job of a launcher."""
