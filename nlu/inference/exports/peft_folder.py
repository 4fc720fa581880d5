"""The adapter of a run with adapter=lora as a folder that peft loads over the weights that the run began with.

Axes: T tokens, D width.
"""

from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors.torch import save_file

from nlu.config.errors import UserError
from nlu.data.layouts import LAYOUTS
from nlu.inference.exports.export_decisions import Row
from nlu.inference.exports.huggingface_export import CHECKED_TEXTS, difference_of_tokens, tokenizer_of
from nlu.inference.exports.modern import encoder_in_transformers
from nlu.inference.exports.padded import load_exactly, require_native, transformers_config, transformers_weights
from nlu.inference.trained import Trained
from nlu.models.adapters.lora import PREFIX, WEIGHTS, LoraLinear, names_in_peft
from nlu.models.encoders.huggingface import HuggingFace
from nlu.models.encoders.modern import ModernBert
from nlu.reports.runs import saved_config

if TYPE_CHECKING:
    from transformers import PreTrainedModel

FORMAT = "peft"


def write(trained: Trained, folder: Path, rows: Sequence[Row]) -> float:
    """Write adapter and tokenizer; returns the largest difference of the vectors of tokens of some of the rows.

    The head is not part of it. Raises UserError for a run without LoRA, and for an encoder whose layers have no
    counterpart in transformers.
    """
    from peft import LoraConfig, PeftModel

    layers = {name: one for name, one in trained.model.named_modules() if isinstance(one, LoraLinear)}
    if not layers:
        raise UserError(f"format is {FORMAT}, but the run has no LoRA; train with adapter=lora, or export it otherwise")
    base = _base_of(trained)
    tensors = {}
    for name, layer in layers.items():
        parts = names_in_peft(name)
        for part, up_OR in zip(parts, layer.up.weight.detach().chunk(len(parts)), strict=True):
            tensors[f"{PREFIX}{part}.lora_A.weight"] = layer.down.weight.detach().float().cpu().clone()
            tensors[f"{PREFIX}{part}.lora_B.weight"] = up_OR.float().cpu().contiguous()
    config, begun = trained.config, saved_config(trained.located.run_dir)["model"].get("pretrained")
    LoraConfig(
        base_model_name_or_path=(begun or "").removeprefix("hf://"),
        task_type="FEATURE_EXTRACTION",
        inference_mode=True,
        r=config.adapter["rank"],
        lora_alpha=config.adapter["alpha"],
        lora_dropout=config.adapter["dropout"],
        target_modules=[part for name in layers for part in names_in_peft(name)],
    ).save_pretrained(str(folder))
    save_file(tensors, folder / WEIGHTS, {"format": "pt"})
    tokenizer_of(trained).save_pretrained(folder)
    forward = base.forward
    PeftModel.from_pretrained(base, folder).eval()
    layout, checked = trained.layout, rows[:CHECKED_TEXTS]
    if layout.name == "sides":
        layout, checked = LAYOUTS["single"], [{"text": row["text_a"]} for row in checked]
    return difference_of_tokens(trained, layout, checked, forward, "last_hidden_state", lambda own_TD, _: own_TD)


def _base_of(trained: Trained) -> "PreTrainedModel":
    """Return the encoder without its adapter as a model of transformers. Raises UserError if it has none."""
    plain: Any = deepcopy(trained.model.backbone)
    for name, module in list(plain.named_modules()):
        if isinstance(module, LoraLinear):
            parent, _, last = name.rpartition(".")
            plain.get_submodule(parent)._modules[last] = module.base
    if isinstance(plain, ModernBert):
        plain = encoder_in_transformers(plain, trained.tokenizer)
    if isinstance(plain, HuggingFace):
        return plain.inner
    sizes = require_native(trained, FORMAT).sizes
    if sizes["pruned_heads"] or plain.group_of(sizes["layers"] - 1) != sizes["layers"] - 1:
        raise UserError(
            f"format is {FORMAT}, but transformers has no such layers as this run; export it as huggingface, merged"
        )
    from transformers import ElectraModel

    model = ElectraModel(transformers_config(trained))
    load_exactly(model, transformers_weights(plain))
    return model.eval()
