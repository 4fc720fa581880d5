"""Commands that are functions of Python too."""
