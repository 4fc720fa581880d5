"""Serve a trained run by HTTP, with a page to try it, or by a prompt.

python -m nlu.serve run=outputs/mine                  http://127.0.0.1:8000/
python -m nlu.serve run=outputs/search port=0         of a search its best trial, at a port that is free
python -m nlu.serve run=outputs/mine --interactive    a prompt in this terminal
"""

from importlib.util import find_spec
from typing import NoReturn

from omegaconf import DictConfig

from nlu.config.entry.app import prepare, run_app
from nlu.config.errors import UserError
from nlu.config.schemas import SCHEMAS

PACKAGES = ("fastapi", "uvicorn", "prometheus_client")
"""of the extra `serve`"""


def main(composed: DictConfig) -> int:
    """Validate, then serve until a signal ends it."""
    plain = prepare(composed, SCHEMAS["serve"])
    from nlu.config.inference import Serve
    from nlu.inference.locate import locate

    config = Serve.of(plain)
    # What is not there is told at once: importing torch takes longer than all other checks.
    locate(config.run, config.checkpoint)
    if config.interactive:
        from nlu.serving.prompt import run_prompt

        return run_prompt(config)
    if absent := [name for name in PACKAGES if find_spec(name) is None]:
        raise UserError(f"a server needs {', '.join(absent)}; install it with pip install 'nlu[serve]'")
    from nlu.serving.listener import listening

    with listening(config) as listener:
        from nlu.serving.server import run_server

        return run_server(config, listener)


def command() -> NoReturn:
    """Be the program nlu-serve."""
    run_app(main, "serve")


if __name__ == "__main__":
    command()
