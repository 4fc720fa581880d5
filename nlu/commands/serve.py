"""Serve a trained run over HTTP, or several of one encoder, with a page to try it, or in a prompt.

Concurrent requests share batches, and no answer depends on the other requests. A newer best checkpoint is loaded
without dropping requests.

python -m nlu.serve run=outputs/mine                  http://127.0.0.1:8000/
python -m nlu.serve run=outputs/search port=0         the best trial of a search, at any free port
python -m nlu.serve run=[outputs/a,outputs/b]         runs of adapter=lora that share one encoder, which is held once
python -m nlu.serve run=outputs/mine --interactive    a prompt in this terminal
NLU_SERVE_TOKEN=... python -m nlu.serve run=outputs/mine host=0.0.0.0    for other machines, which send the token

POST /predict    {"rows": [{"text": "..."}], "scores": false, "logits": false}; answers {"rows": [{"prediction": ...}]}
POST /explain    {"row": {"text": "..."}, "label": null, "span": null}; how much each token adds to the score
POST /encode     {"texts": ["..."], "prompt": null, "dims": null}; answers {"vectors": [[0.1, ...]]}
POST /similar    {"query": "...", "candidates": ["..."]}, best first, or {"pairs": [["...", "..."]]}; cosines
GET /labels /health /metrics /openapi.json
"""

from importlib.util import find_spec
from typing import NoReturn

from omegaconf import DictConfig

from nlu.config.choices import SCHEMAS
from nlu.config.entry.app import prepare, run_app
from nlu.config.errors import UserError

PACKAGES = ("fastapi", "uvicorn", "prometheus_client")
"""the packages of the extra `serve`"""


def main(composed: DictConfig) -> int:
    """Validate, then serve until a signal."""
    plain = prepare(composed, SCHEMAS["serve"])
    from nlu.config.command_keys import Serve
    from nlu.serving.named import named

    config = Serve.of(plain)
    # Report missing files first: importing torch takes longer than all other checks.
    named(config)
    if config.interactive:
        from nlu.serving.prompt import run_prompt

        return run_prompt(config)
    # find_spec does not import them, which would take as long as the rest of the start.
    if absent := [name for name in PACKAGES if find_spec(name) is None]:
        raise UserError(f"a server needs {', '.join(absent)}; install it with pip install 'nlu[serve]'")
    from nlu.serving.listener import listening

    # The port is taken before torch is imported and the run is loaded, so a port in use is reported at once.
    with listening(config) as listener:
        from nlu.serving.server import run_server

        return run_server(config, listener)


def command() -> NoReturn:
    """The program nlu-serve."""
    run_app(main, "serve")


if __name__ == "__main__":
    command()
