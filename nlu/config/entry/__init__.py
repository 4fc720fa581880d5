"""Where every command begins: the command line, what is checked before anything is built, grids, exit codes."""
