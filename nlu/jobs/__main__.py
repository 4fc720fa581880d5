"""`python -m nlu.jobs`, which is a package too: see `nlu.commands.jobs`."""

from nlu.commands.jobs import main
from nlu.config.console import run_command

if __name__ == "__main__":
    run_command(main)
