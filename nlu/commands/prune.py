"""Remove the least important attention heads of a trained run.

python -m nlu.prune run=outputs/mine fraction=0.3 out=outputs/smaller     a new run with 70 % of the heads
python -m nlu.prune run=outputs/mine 'heads={0: 6, -1: 2}' out=outputs/smaller
"""

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, NoReturn

from omegaconf import DictConfig

from nlu.config.choices import SCHEMAS, target_of
from nlu.config.entry.app import prepare, run_app
from nlu.config.errors import UserError
from nlu.config.targets import TARGET
from nlu.config.types import Config

if TYPE_CHECKING:
    from nlu.config.command_keys import Prune
    from nlu.inference.locate import Located

CHOOSING = ("fraction", "heads")
"""the keys of which one says which heads are removed"""


def main(composed: DictConfig) -> int:
    """Validate, then prune."""
    plain = prepare(composed, SCHEMAS["prune"])
    from nlu.config.command_keys import Prune
    from nlu.inference.locate import locate
    from nlu.storage.outputs import require_free

    config = Prune.of(plain)
    if problems := list(_cross(plain)):
        raise UserError(*problems)
    # Report missing files first: importing torch takes longer than all other checks.
    located = locate(config.run, config.checkpoint)
    if problems := list(_of_run(config, located)):
        raise UserError(*problems)
    require_free(config.out, "out")
    if plain["dry_run"]:
        from nlu.jobs.queue import end_dry_run

        return end_dry_run(plain)
    from nlu.inference.pruning import run_prune

    return run_prune(config, located)


def _cross(config: Config) -> Iterator[str]:
    """Yield the problems of combinations of keys."""
    given = [key for key in CHOOSING if config[key] is not None]
    if len(given) > 1:
        yield f"{' and '.join(given)} are set, but each says which heads to remove; leave out all but one"
    if not given or config["heads"] == {} or config["fraction"] == 0:
        yield f"out is {config['out']}, but nothing says which heads to remove; set fraction or heads"


def _of_run(config: "Prune", located: "Located") -> Iterator[str]:
    """Yield why the heads of a run cannot be removed as the keys say, as far as its files show it."""
    from nlu.config.mixtures import names_of
    from nlu.models.formats.smaller_weights import kept_heads, pruned_heads_of
    from nlu.reports.runs import saved_config

    saved = saved_config(located.run_dir)
    known = json.loads((located.checkpoint / "config.json").read_text(encoding="utf-8"))
    if names := names_of(saved):
        yield f"run is {config.run}, which has the heads {', '.join(names)} for several sets; prune a run of one set"
        return
    if known.get("model_type") != "nlu-bert":
        yield (
            f"run is {config.run}, whose model is not a native encoder of the BERT family; prune a run of "
            "model=bert, or of another native encoder: docs/models.md"
        )
        return
    if saved["adapter"][TARGET] != target_of("adapter", "none"):
        yield (
            f"run is {config.run}, which has an adapter; train a run without adapter= from it, by "
            f"model.pretrained={config.run}, and prune that one"
        )
    layers, heads = known["num_hidden_layers"], known["num_attention_heads"]
    if known.get("num_hidden_groups") not in (None, layers):
        yield f"run is {config.run}, whose layers share their weights, so they cannot lose different heads"
        return
    pruned = pruned_heads_of(known)
    there = [len(kept_heads(pruned, layer, heads)) for layer in range(layers)]
    most = sum(there) - layers
    if config.fraction and not round(config.fraction * sum(there)):
        yield (
            f"fraction is {config.fraction}, which is none of the {sum(there)} heads; set it to at least "
            f"{1 / sum(there):.3f}"
        )
    if config.fraction is not None and round(config.fraction * sum(there)) > most:
        yield (
            f"fraction is {config.fraction}, but each of the {layers} layers keeps at least one of the {sum(there)} "
            f"heads; set fraction to at most {most / sum(there):.3f}"
        )
    for layer, count in (config.heads or {}).items():
        if not isinstance(layer, int) or not -layers <= layer < layers:
            yield f"heads names the layer {layer}, but there are {layers}; name layers from {-layers} to {layers - 1}"
        elif count >= there[layer % layers]:
            yield (
                f"heads removes {count} of the {there[layer % layers]} heads of layer {layer}, but a layer keeps at "
                "least one; remove fewer"
            )
    named = [layer % layers for layer in config.heads or {} if isinstance(layer, int)]
    if len(set(named)) < len(named):
        yield f"heads is {config.heads}, which names a layer twice; name each once"


def command() -> NoReturn:
    """The program nlu-prune."""
    run_app(main, "prune")


if __name__ == "__main__":
    command()
