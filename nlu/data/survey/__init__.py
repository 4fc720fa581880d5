"""What a person should know of files before anything is trained on them; read once, row by row."""
