"""Whether this machine is fit for nlu, and why the score of a run may be another than it was."""
