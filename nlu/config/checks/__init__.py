"""Checks of configurations and command lines: they report everything at once, before anything heavy is imported."""
