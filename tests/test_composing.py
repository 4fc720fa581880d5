"""What tests compose in parts is what Hydra composes at once."""

from pathlib import Path

import pytest

from nlu.config.entry.app import prepare
from tests.composing import composed_at_once, prepared
from tests.training.kinds import KINDS

VALUES = ("folds.count=3", "seed=4", "data.max_len=16", "optimizer.betas=[0.5,0.9]")


@pytest.mark.parametrize("name", ["classify", "tag with a CRF", "siamese with contrastive loss", "fgm of a TextCNN"])
def test_values_that_are_set_after_the_choices_give_what_hydra_composes(name: str, tmp_path: Path) -> None:
    overrides = [*KINDS[name].overrides(tmp_path), *VALUES]
    assert prepared(overrides) == prepare(composed_at_once(overrides))


def test_a_key_that_there_is_not_is_refused() -> None:
    with pytest.raises(Exception, match="stepps"):
        prepared(["method=freelb", "method.stepps=4"])
