"""Where a run is wrong: its most confident mistakes, what their rows have in common, and suspected label errors."""
