"""Where a run is wrong: its surest mistakes, among which rows they gather, and labels that may be wrong themselves."""
