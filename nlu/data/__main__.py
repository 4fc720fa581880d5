"""`python -m nlu.data`, which is a package too: see `nlu.commands.data`."""

from nlu.commands.data import command

if __name__ == "__main__":
    command()
