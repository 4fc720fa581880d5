"""`python -m nlu.jobs`, which is a package too: see `nlu.commands.jobs`."""

from nlu.commands.jobs import command

if __name__ == "__main__":
    command()
