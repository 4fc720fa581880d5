"""Use of trained runs: find one by a reference, load it without its data, predict, score, explain and export."""
