"""The folder of a search: which search it holds, and what is left where one was refused."""

from functools import partial
from pathlib import Path
from typing import Any

import optuna
import pytest

from nlu.config.errors import UserError
from nlu.search.sweep_folder import (
    HELD,
    OVER,
    RECORD,
    begin_study,
    held_search,
    hold,
    require_no_run,
    require_same,
    settle,
)

NOW = {"folder": "f", "shared": {"seed": "1"}, "pruner": {"name": "asha"}, "space": {"lr": "interval(0, 1)"}}


def study(**attributes: Any) -> optuna.Study:
    found = optuna.create_study(study_name="s", direction="maximize")
    for key, value in {**NOW, "id": "i", **attributes}.items():
        found.set_user_attr(key, value)
    return found


def begun(folder: Path, storage: optuna.storages.BaseStorage | None = None) -> optuna.Study:
    create = partial(optuna.create_study, study_name="s", storage=storage, direction="maximize")
    return begin_study(folder, "s", "url", create)


def hold_search(folder: Path) -> None:
    (folder / HELD).write_text('{"study": "s", "storage": "url", "id": "i"}')


def test_a_folder_holds_one_search_of_one_name_and_storage_and_no_run(tmp_path: Path) -> None:
    require_no_run(tmp_path)
    (tmp_path / "3").mkdir()
    (tmp_path / "3" / RECORD).touch()
    with pytest.raises(UserError, match=f"hydra.sweep.dir is {tmp_path}, which holds a run in 3, and no search"):
        require_no_run(tmp_path)
    (tmp_path / RECORD).touch()
    with pytest.raises(UserError, match="which holds a run; choose another"):
        require_no_run(tmp_path)
    own = begun(tmp_path)
    settle(tmp_path, "url", own, NOW, "maximize")
    require_no_run(tmp_path)
    assert held_search(tmp_path) == {"study": "s", "storage": "url", "id": own.user_attrs["id"]}
    require_same(tmp_path, "s", "other", own, NOW, "maximize")
    for name, url, said in (
        ("s", "url", "s, which is no longer in url;"),
        ("s", "other", "s from url, not s in other; continue it with hydra.sweeper.study_name=s and hydra"),
        ("b", "url", "s from url, not b in url; continue it with hydra.sweeper.study_name=s and hydra"),
    ):
        with pytest.raises(UserError, match=said):
            require_same(tmp_path, name, url, None, NOW, "maximize")


@pytest.mark.parametrize(
    ("there", "here", "said"),
    [
        ({OVER: True}, {}, "the study s in url is over: python -m nlu.jobs .* --stop has ended it; choose another"),
        ({}, {"space": {"lr": "interval(0, 2)"}}, r"lr: interval\(0, 1\) there, interval\(0, 2\) here"),
        ({"shared": {"seed": "2"}}, {}, "seed: 2 there, 1 here"),
        (
            {"goals": {"objectives": {}, "constraints": [["parameters", "<=", 5]]}},
            {},
            r"hydra.sweeper.constraints: \['parameters<=5'\] there, \[\] here",
        ),
        ({}, {"goals": {"objectives": {"loss": False}}}, r"hydra.sweeper.objectives: \[\] there, \['loss'\] here"),
        ({"pruner": {"name": "hyperband"}}, {}, "pruner: one that pauses no trial there, asha or freeze_thaw here"),
    ],
)
def test_a_study_of_another_search_is_refused_with_the_difference(tmp_path, there, here, said) -> None:
    with pytest.raises(UserError, match="belongs to the sweep folder f, and .* does not hold it; continue it there"):
        require_same(tmp_path, "s", "url", study(**there), NOW, "maximize")
    hold_search(tmp_path)
    with pytest.raises(UserError, match=said) as refused:
        require_same(tmp_path, "s", "url", study(**there), {**NOW, **here}, "maximize")
    assert len(refused.value.problems) == 1


def test_a_study_of_the_same_search_is_continued_also_by_another_pruner_of_its_kind(tmp_path: Path) -> None:
    hold_search(tmp_path)
    own = study(pruner={"name": "freeze_thaw"})
    require_same(tmp_path, "s", "url", own, NOW, "maximize")
    with pytest.raises(UserError, match="direction: maximize there, minimize here"):
        require_same(tmp_path, "s", "url", own, NOW, "minimize")


def test_a_search_that_a_kill_cut_off_as_it_began_is_continued_with_its_direction(tmp_path: Path) -> None:
    left = begun(tmp_path)
    with pytest.raises(UserError, match="the study s in url is to maximize, this search to minimize; choose another"):
        settle(tmp_path, "url", left, NOW, "minimize")
    assert not left.user_attrs
    settle(tmp_path, "url", left, NOW, "maximize")
    assert left.user_attrs["space"] == NOW["space"]


def test_a_search_that_a_kill_cut_off_before_its_study_was_created_begins(tmp_path: Path) -> None:
    hold_search(tmp_path)
    require_same(tmp_path, "s", "url", None, NOW, "maximize")
    with pytest.raises(UserError, match="continue it with hydra.sweeper.study_name=s"):
        require_same(tmp_path, "s", "other", None, NOW, "maximize")
    settle(tmp_path, "url", own := begun(tmp_path), NOW, "maximize")
    assert own.user_attrs["id"] == "i"


def test_of_two_searches_that_begin_at_once_one_gets_the_study(tmp_path: Path) -> None:
    storage, (first, second) = optuna.storages.InMemoryStorage(), (tmp_path / "first", tmp_path / "second")
    with hold(first), hold(second):
        own = begun(first, storage)
        for at in (0, 1):
            # Before the study has its attributes, and after that.
            with pytest.raises(UserError, match="the study s in url belongs to another search, and .*second does not"):
                begun(second, storage)
            said = f"belongs to {'the sweep folder f' if at else 'another search'}, and .*second does not hold it"
            with pytest.raises(UserError, match=said):
                require_same(second, "s", "url", optuna.load_study(study_name="s", storage=storage), NOW, "maximize")
            settle(first, "url", own, NOW, "maximize")
    assert held_search(first)["id"] == own.user_attrs["id"] and not second.exists()


def test_a_search_whose_study_another_one_takes_as_it_begins_ends(tmp_path: Path, monkeypatch) -> None:
    own, write = begun(tmp_path), optuna.Study.set_user_attr

    def overtaken(study: optuna.Study, key: str, value: Any) -> None:
        write(study, key, value)
        write(study, "id", "other")

    monkeypatch.setattr(optuna.Study, "set_user_attr", overtaken)
    with pytest.raises(UserError, match="belongs to the sweep folder f, and .* does not hold it"):
        settle(tmp_path, "url", own, NOW, "maximize")


@pytest.mark.parametrize("left", [[], ["empty"], ["full"], ["folder"]])
def test_a_search_that_was_refused_leaves_nothing_and_takes_nothing_away(tmp_path: Path, left: list[str]) -> None:
    folder = tmp_path / "s"
    with hold(folder):
        for name in left:
            (folder / name).write_text("x" if name == "full" else "") if name != "folder" else (folder / name).mkdir()
    assert folder.exists() == (left in (["full"], ["folder"]))
    assert all((folder / name).exists() for name in left) or not folder.exists()
