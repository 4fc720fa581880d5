"""A trained run behind HTTP or a prompt."""
