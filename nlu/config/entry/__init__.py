"""The start of every command: the command line, checks before anything is built, grids, exit codes."""
