"""The folder of a search: which search it holds, and what is left where one was refused."""

from pathlib import Path

import pytest

from nlu.config.errors import UserError


def test_a_folder_holds_one_search_of_one_name_and_storage_and_no_run(tmp_path: Path) -> None:
    from nlu.search import folder as _folder

    _folder.require_no_run(tmp_path)
    _folder.require_same_id(tmp_path, "a", "url", None)
    assert _folder.held_name(tmp_path) is None
    (tmp_path / "3").mkdir()
    (tmp_path / "3" / _folder.RECORD).touch()
    with pytest.raises(UserError, match=f"hydra.sweep.dir is {tmp_path}, which holds a run in 3, and no search"):
        _folder.require_no_run(tmp_path)
    (tmp_path / _folder.RECORD).touch()
    with pytest.raises(UserError, match="which holds a run; choose another"):
        _folder.require_no_run(tmp_path)
    _folder.keep(tmp_path, "a", "url", "id")
    _folder.require_no_run(tmp_path)
    assert _folder.held_search(tmp_path) == {"study": "a", "storage": "url", "id": "id"}
    _folder.require_same_id(tmp_path, "a", "other", "id")
    for name, url, said in (
        ("a", "url", "a, which is no longer in url;"),
        ("a", "other", "a from url, not a in other; continue it with hydra.sweeper.study_name=a and hydra"),
        ("b", "url", "a from url, not b in url; continue it with hydra.sweeper.study_name=a and hydra"),
    ):
        with pytest.raises(UserError, match=said):
            _folder.require_same_id(tmp_path, name, url, None)


@pytest.mark.parametrize("left", [[], ["empty"], ["full"], ["folder"]])
def test_a_search_that_was_refused_leaves_nothing_and_takes_nothing_away(tmp_path: Path, left: list[str]) -> None:
    from nlu.search.folder import hold

    folder = tmp_path / "s"
    with hold(folder):
        for name in left:
            (folder / name).write_text("x" if name == "full" else "") if name != "folder" else (folder / name).mkdir()
    assert folder.exists() == (left in (["full"], ["folder"]))
    assert all((folder / name).exists() for name in left) or not folder.exists()
