"""Optimizers of named parameter groups, and learning-rate schedules that are functions of the step."""
