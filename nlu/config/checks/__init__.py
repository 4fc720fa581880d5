"""What is wrong with a configuration or a command line: all of it at once, before anything heavy is imported."""
