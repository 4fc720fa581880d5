"""Output for people, during a run and after it: progress, tables, figures and pages."""
