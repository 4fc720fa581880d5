"""The keys of a class come from its dataclass, or from the signature of a class of a user's own."""

import inspect
import json
import subprocess
import sys
from dataclasses import dataclass

import pytest

from nlu.config.choices import conf_dir, targets_of
from nlu.config.errors import UserError
from nlu.config.keys import REQUIRED, schema_of, takes
from nlu.config.targets import import_target, trust


def test_the_keys_of_a_class_of_nlu_are_the_fields_of_its_dataclass():
    schema = schema_of("nlu.losses.focal.Focal")
    assert list(schema.keys) == ["gamma", "class_weights"] and schema.defaults == {"gamma": 2.0, "class_weights": None}
    assert schema.help["gamma"].startswith("Exponent of 1 - p") and schema.constants["kinds"] == ("classes", "tags")


def test_a_class_of_a_users_own_has_the_keywords_of_its_constructor():
    schema = schema_of("shop.models.Model")
    assert list(schema.keys) == ["hidden_size", "layers", "name", "head"]
    assert schema.positional == ("labels",)
    assert schema.keys["hidden_size"].default == 8 and not schema.is_open
    assert schema_of("shop.models.make").keys["rate"].default is REQUIRED
    assert list(schema_of("shop.models.Heir").keys) == ["hidden_size", "dropout"]
    assert schema_of("shop.models.Open").is_open
    job = schema_of("shop.schema.Job")
    assert job.keys["name"].default is REQUIRED and job.defaults["trusted_packages"] == [] and "later" not in job.keys


OF_FOCAL = """
from nlu.losses.focal import Focal

class Mine(Focal):
    def __init__(self, *, sharp: bool = True, **others):
        super().__init__(**others)

class Fixed(Focal):
    def __init__(self):
        super().__init__(gamma=1)
"""


def test_a_class_that_derives_from_one_of_nlu_has_the_keys_of_both(tmp_path, monkeypatch):
    (tmp_path / "mine_of_focal.py").write_text(OF_FOCAL, encoding="utf-8")
    monkeypatch.setattr(sys, "path", [*sys.path])
    trust({"plugins": [str(tmp_path / "mine_of_focal.py")]})
    schema = schema_of("mine_of_focal.Mine")
    assert set(schema.keys) == {"sharp", "gamma", "class_weights"} and schema.constants["kinds"] == ("classes", "tags")
    assert import_target("mine_of_focal.Mine")(gamma=1).gamma == 1
    assert schema_of("mine_of_focal.Fixed").keys == {}


def test_a_class_takes_its_keys_by_name_after_what_the_program_passes():
    @dataclass(kw_only=True)
    class Keys:
        size: int = 3
        kind = "part"

    @takes(Keys)
    class Part:
        def __init__(self, labels: list[str], keys: Keys):
            self.labels, self.size = labels, keys.size

    @takes(Keys)
    class Heir(Part):
        def __init__(self, labels: list[str], keys: Keys):
            super().__init__([*labels, "b"], keys)

    part = Heir(["a"], size=5)  # type: ignore[call-arg]
    assert (part.labels, part.size, part.kind) == (["a", "b"], 5, "part")  # type: ignore[attr-defined]
    with pytest.raises(TypeError, match="sise"):
        Part(["a"], sise=5)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("shop.models.Modell", "shop.models has no Modell; nearest: Model"),
        ("shop.model.Model", "shop has no model; nearest: models"),
        ("shop.models", "does not name a class"),
        ("nlu.losses.focal.Fokal", "nlu.losses.focal has no Fokal; nearest: Focal"),
        ("nlu.losses.fokal.Focal", "nlu.losses has no fokal; nearest: focal"),
        ("shopp.models.Model", "shopp.models.Model is outside nlu; if you trust shopp"),
        ("__main__.Model", "is outside nlu"),
    ],
)
def test_an_unknown_target_is_refused_with_its_part_that_is_wrong_and_the_nearest(target: str, expected: str):
    with pytest.raises(UserError) as caught:
        schema_of(target)
    assert expected in str(caught.value)


GROUPS = [path.name for path in conf_dir().iterdir() if path.is_dir() and path.name != "hydra"]
TARGETS = sorted({target for group in GROUPS for target in targets_of(group).values()})


def test_every_choice_has_its_keys_without_importing_what_it_configures():
    code = (
        "import json, sys\nfrom nlu.config.keys import schema_of\n"
        f"print(json.dumps([t for t in {TARGETS!r} if schema_of(t).described_by is None]))\n"
        "print({'torch', 'numpy', 'transformers'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    without, heavy = done.stdout.splitlines()
    assert json.loads(without) == [] and heavy == "set()"


@pytest.mark.parametrize("target", TARGETS)
def test_every_key_of_a_choice_has_a_meaning_and_its_class_takes_it(target: str):
    schema = schema_of(target)
    assert [name for name, text in schema.help.items() if not text] == []
    cls = import_target(target)
    assert cls.keys_of_class is schema.described_by, f"{target} lacks @takes"  # type: ignore[attr-defined]
    assert "keys" in inspect.signature(cls).parameters or not schema.keys
