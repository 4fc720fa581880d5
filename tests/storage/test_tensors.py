"""Files of tensors notice any damage that leaves a readable file."""

import random
import subprocess
import sys

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from nlu.storage.checksum import checksum
from nlu.storage.tensors import load_tensors, origin_of, save_tensors

TENSORS = {
    "large": torch.arange(70_000, dtype=torch.float32).reshape(700, 100),
    "half": torch.linspace(-1, 1, 33).half(),
    "flags": torch.tensor([True, False, True]),
    "step": torch.tensor(7.0),
    "none": torch.zeros(0, 4),
}


def test_what_was_saved_is_read_again_with_its_step(tmp_path):
    save_tensors(tmp_path / "a.safetensors", TENSORS, 40)
    found = load_tensors(tmp_path / "a.safetensors")
    assert found.keys() == TENSORS.keys() and all(torch.equal(found[name], TENSORS[name]) for name in TENSORS)
    assert origin_of(tmp_path / "a.safetensors") == ("a", "40")
    save_tensors(tmp_path / "b.safetensors", TENSORS)
    assert origin_of(tmp_path / "b.safetensors") == ("b", None)


def test_any_flipped_bit_of_the_tensors_is_noticed(tmp_path):
    path, rng = tmp_path / "a.safetensors", random.Random(0)
    save_tensors(path, TENSORS, 40)
    whole = path.read_bytes()
    header = 8 + int.from_bytes(whole[:8], "little")
    places = [header, len(whole) - 1, *(rng.randrange(header, len(whole)) for _ in range(30))]
    for place in places:
        damaged = bytearray(whole)
        damaged[place] ^= 1 << rng.randrange(8)
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match=r"a\.safetensors does not match its checksum"):
            load_tensors(path)


def test_a_file_of_another_program_or_of_an_earlier_version_is_read(tmp_path):
    save_file(TENSORS, tmp_path / "other.safetensors")
    save_file(TENSORS, tmp_path / "earlier.safetensors", {"step": "12"})
    assert torch.equal(load_tensors(tmp_path / "other.safetensors")["half"], TENSORS["half"])
    assert origin_of(tmp_path / "earlier.safetensors") == (None, "12")
    assert origin_of(tmp_path / "other.safetensors") == (None, None)


def test_the_same_tensors_have_the_same_bytes_in_every_process(tmp_path):
    save_tensors(tmp_path / "a.safetensors", {"x": torch.ones(3), "y": torch.zeros(2)}, 3)
    code = (
        "import torch, sys; from pathlib import Path; from nlu.storage.tensors import save_tensors; "
        "save_tensors(Path(sys.argv[1]), {'y': torch.zeros(2), 'x': torch.ones(3)}, 3)"
    )
    (tmp_path / "b").mkdir()
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "b/a.safetensors")], check=True)
    assert (tmp_path / "a.safetensors").read_bytes() == (tmp_path / "b/a.safetensors").read_bytes()


@pytest.mark.parametrize("size", [1, 7, 32_768, 100_003])
def test_any_changed_byte_changes_it(size):
    whole = np.random.default_rng(0).integers(0, 256, size, np.uint8)
    before = checksum([("a", whole)])
    for place in {0, size // 2, size - 1}:
        changed = whole.copy()
        changed[place] ^= 4
        assert checksum([("a", changed)]) != before
    assert checksum([("a", whole.copy())]) == before


def test_exchanged_chunks_and_exchanged_names_change_it():
    parts = np.arange(4 * 8192, dtype=np.float32).reshape(4, 8192)
    assert checksum([("a", parts)]) != checksum([("a", parts[[1, 0, 2, 3]])])
    one, two = np.ones(1), np.zeros(1)
    assert checksum([("a", one), ("b", two)]) != checksum([("a", two), ("b", one)])


def test_it_does_not_depend_on_how_the_values_lie_in_memory():
    values = np.arange(60_000, dtype=np.int32).reshape(200, 300)
    assert checksum([("a", values[::2])]) == checksum([("a", values[::2].copy())])
    assert checksum([("a", np.array(3.0))]) == checksum([("a", np.array([3.0]))])
