"""Models of transformers, built with random weights and tried with short texts.

What cannot work, or not independently of padding, is refused with its reason before anything is trained. The queries,
keys and values of their layers are found by the names of modules.

Axes: S texts, L tokens of the longest, D width.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from nlu.config.errors import CheckpointError, UserError
from nlu.config.resolving import first_line
from nlu.models.formats.pretrained import Pretrained
from nlu.models.formats.sentence_folder import first_module

PROJECTIONS = (
    ("query", "query_proj", "q_proj", "q_lin", "q", "Wqkv"),
    ("key", "key_proj", "k_proj", "k_lin", "k", "Wqkv"),
    ("value", "value_proj", "v_proj", "v_lin", "v", "Wqkv"),
)
"""names in transformers of the modules that compute queries, keys and values, or all three side by side"""

MODEL_TYPE = "nlu-huggingface"
"""model_type of a checkpoint, so that transformers does not load it; `inner` has the configuration of the
architecture"""
OTHERS = "choose weights of another architecture, such as bert, roberta, deberta-v2 or modernbert"
TEXT, NEIGHBOR = 3, 24
"""tokens of the text that is tried, and of a longer one beside it"""
TOLERANCE = 1e-5
"""the largest difference by rounding, relative to the largest value; right architectures stay below 2e-6, those that
compute with padding differ by more than 5e-4"""


@contextmanager
def silent() -> Iterator[None]:
    """Keep transformers from showing warnings, reports of names and bars of its own."""
    from transformers.utils import logging

    verbosity, shows_bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if shows_bars:
            logging.enable_progress_bar()


def architecture(source: Pretrained) -> Any:
    """Return the transformers configuration in the weights' folder. Raises CheckpointError if it is none of words."""
    try:
        from transformers import AutoConfig
    except ImportError:
        raise UserError("model=hf needs the transformers library; pip install 'nlu[hf]'") from None
    try:
        if source.config.get("model_type") == MODEL_TYPE:
            inner = source.config["inner"]
            config = type(AutoConfig.for_model(inner["model_type"])).from_dict(inner)
        else:
            with silent():
                config = AutoConfig.from_pretrained(source.folder, trust_remote_code=False)
            # Known from another file too.
            if says := source.config.get("sentence_transformers"):
                config.sentence_transformers = says
    # Its checks of types raise errors of many classes.
    except Exception as error:
        if (first := first_module(source)) not in (None, "Transformer"):
            raise not_usable(source, f"the first of its modules of sentence-transformers is {first}") from error
        if source.config.get("auto_map"):
            raise not_usable(source, "its config.json names Python code (auto_map), which nlu never runs") from error
        raise CheckpointError(
            f"{source.key} is {source.reference!r}, but transformers cannot read the configuration in {source.folder}: "
            f"{first_line(error)}; give a folder with its config.json, or the model group that wrote it"
        ) from error
    # Configurations of images or audio, and nested ones of several models.
    if not hasattr(config, "vocab_size") or not hasattr(config, "hidden_size"):
        raise not_usable(source, "it has no vocabulary or no width")
    positions = str(getattr(config, "position_embedding_type", None))
    if positions.startswith("relative_key"):
        raise not_usable(
            source,
            f"its position_embedding_type is {positions}, which transformers computes no more since version 5",
        )
    if getattr(config, "quantization_config", None):
        raise not_usable(source, "its weights are quantized (quantization_config)", "give the weights before that")
    return config


def random_model(config: Any, source: Pretrained) -> tuple[Any, bool]:
    """Return the encoder with random weights, in fp32, and whether tokens see only those before them.

    Raises CheckpointError for an architecture that cannot encode texts from word vectors, or not independently of
    padding.
    """
    from transformers import AutoModel

    try:
        with silent():
            inner: Any = AutoModel.from_config(config, dtype=torch.float32, trust_remote_code=False)
    except Exception as error:
        raise not_usable(source, f"transformers cannot build it ({first_line(error)})") from error
    if getattr(config, "is_encoder_decoder", False):
        raise not_usable(source, "it is an encoder with a decoder, which also needs a text to continue")
    if "inputs_embeds" not in inspect.signature(inner.forward).parameters:
        raise not_usable(source, "it cannot be given word vectors (inputs_embeds)")
    # Its weights would never get a gradient: the head reads tokens and their mean.
    if getattr(inner, "pooler", None) is not None:
        inner.pooler = nn.Identity()
    try:
        # The tests must not change the run's random numbers, and must not depend on dropout.
        with torch.random.fork_rng(devices=[]), torch.no_grad(), silent():
            torch.manual_seed(0)
            return inner, _is_causal(inner.eval())
    except _UnfitError as unfit:
        raise not_usable(source, str(unfit)) from None
    except Exception as error:
        raise not_usable(source, f"it cannot encode a text ({first_line(error)})") from error
    finally:
        inner.train()


def not_usable(source: Pretrained, reason: str, remedy: str = OTHERS) -> CheckpointError:
    """Return the error for weights that model=hf cannot use."""
    kind = source.config.get("inner", source.config).get("model_type", "null")
    return CheckpointError(
        f"{source.key} is {source.reference!r} of model_type {kind}, which model=hf cannot use: {reason}; {remedy}"
    )


class _UnfitError(Exception):
    """Why the vectors of an architecture are not those of the texts."""


def _is_causal(inner: Any) -> bool:
    """Return whether tokens see only those before them, because not all configurations say it.

    Raises _UnfitError if vectors depend on padding, or on more of the words than their vectors.
    """
    ids_SL = _random_words(inner)
    mask_SL = torch.ones_like(ids_SL)
    mask_SL[0, TEXT:] = 0
    try:
        x_SLD = inner.get_input_embeddings()(ids_SL)
    except NotImplementedError:
        raise _UnfitError("it has no table of word vectors") from None
    if not isinstance(x_SLD, Tensor):
        raise _UnfitError("its table of words returns more than their vectors")
    # Padding has the vector 0, as in a batch.
    x_SLD = x_SLD * mask_SL[:, :, None]
    alone_SLD = _encoded(inner, mask_SL[:1, :TEXT], inputs_embeds=x_SLD[:1, :TEXT])
    if _differ(_encoded(inner, mask_SL[:1, :TEXT], input_ids=ids_SL[:1, :TEXT]), alone_SLD) is not None:
        raise _UnfitError("it computes more from words than their vectors, which it is given here")
    beside_SLD = _encoded(inner, mask_SL, inputs_embeds=x_SLD)[:1, :TEXT]
    if (difference := _differ(beside_SLD, alone_SLD)) is not None:
        raise _UnfitError(
            f"its vectors depend on padding: those of a text alone and beside a longer one differ by {difference:.1g}, "
            f"the largest value is {float(alone_SLD.abs().max()):.1g}, so scores would depend on the batch"
        )
    # Two texts that differ in the second word, and one that differs from the first of them in the first word.
    first_D, second_D, other_D = x_SLD[1, :3]
    pairs = (first_D, second_D), (first_D, other_D), (other_D, second_D)
    pairs_SLD = torch.stack([torch.stack(pair) for pair in pairs])
    hidden_SLD = _encoded(inner, torch.ones(pairs_SLD.shape[:2], dtype=torch.long), inputs_embeds=pairs_SLD)
    sees_next = _differ(hidden_SLD[0, 0], hidden_SLD[1, 0]) is not None
    sees_past = _differ(hidden_SLD[0, 1], hidden_SLD[2, 1]) is not None
    # Models in which no token sees another one at all, or all see each other, are not causal.
    return sees_past and not sees_next


def _random_words(inner: Any) -> Tensor:
    """Return two texts of random words that are no special tokens, each once if there are enough; (S, L)."""
    config = inner.config.to_dict()
    special = {value for name, value in config.items() if name.endswith("_token_id")}
    # MPNet takes 1 for padding, whatever its configuration says, so the first rows are left out too.
    ids = [number for number in range(config["vocab_size"] // 2, config["vocab_size"]) if number not in special]
    length = min(NEIGHBOR, max_positions(inner) or NEIGHBOR)
    order = torch.randperm(len(ids))[torch.arange(2 * length) % len(ids)]
    return torch.tensor(ids)[order].view(2, length)


def _encoded(inner: Any, mask_SL: Tensor, **words: Tensor) -> Tensor:
    hidden_SLD: Tensor = inner(**words, attention_mask=mask_SL).last_hidden_state
    if hidden_SLD.shape[:2] != mask_SL.shape:
        raise _UnfitError("it does not return a vector for each token")
    return hidden_SLD


def _differ(one: Tensor, other: Tensor) -> float | None:
    """Return the largest difference; None if it is one of rounding."""
    difference, scale = float((one - other).abs().max()), float(other.abs().max())
    return difference if difference > TOLERANCE * scale else None


def max_positions(inner: Any) -> int | None:
    """Return the length of the longest sequence; models like RoBERTa do not use positions up to the padding's index."""
    limit: int | None = getattr(inner.config, "max_position_embeddings", None)
    for name, table in inner.named_modules():
        if name.endswith("position_embeddings") and isinstance(table, nn.Embedding) and table.padding_idx is not None:
            return table.num_embeddings - table.padding_idx - 1
    # XLNet, which has no limit, says -1.
    return limit if limit and limit > 0 else None


def converted(inner: Any, config: Any, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return a checkpoint's tensors as those of the model, converted as transformers does when it loads them, in fp32.

    `config` is that of the checkpoint. Tensors of another shape than the model's, and those that it has no place for,
    keep theirs; the latter may be empty ones that only have the name.
    """
    # Parameters that the checkpoint lacks are drawn at random, which must not change the run's random numbers.
    with torch.random.fork_rng(devices=[]), silent():
        loaded, report = type(inner).from_pretrained(
            None,
            config=config,
            state_dict=dict(tensors),
            dtype=torch.float32,
            ignore_mismatched_sizes=True,
            output_loading_info=True,
        )
    other = {name: theirs for name, theirs, _ in report["mismatched_keys"]}
    found = {
        name: value
        for name, value in loaded.state_dict().items()
        if name not in report["missing_keys"] and name not in other
    }
    found |= {name: torch.empty(shape, device="meta") for name, shape in other.items()}
    return found | {name: torch.empty(0, device="meta") for name in report["unexpected_keys"]}


@contextmanager
def projections_of(inner: nn.Module | None) -> Iterator[list[list[Tensor]]]:
    """Yield the lists of queries, keys and values that the layers compute in the block, in the order of layers.

    Modules are found by their names in transformers. If layers share a module, as in ALBERT, each call is a layer.
    """
    seen: list[list[Tensor]] = [[], [], []]
    hooks = []

    def keep(places: Sequence[int]) -> Callable[..., None]:
        def hook(module: nn.Module, inputs: object, output: Tensor) -> None:
            for place, part in zip(places, output.chunk(len(places), dim=-1), strict=True):
                seen[place].append(part)

        return hook

    for name, module in inner.named_modules() if inner is not None else ():
        places = [place for place, names in enumerate(PROJECTIONS) if name.rpartition(".")[2] in names]
        if places:
            hooks.append(module.register_forward_hook(keep(places)))
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()
