"""`python -m nlu.data`, which is a package too: see `nlu.commands.data`."""

from nlu.commands.data import main
from nlu.config.console import run_command

if __name__ == "__main__":
    run_command(main)
