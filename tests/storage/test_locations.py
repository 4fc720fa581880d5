"""Where a text says that something lies, and what of it is refused before anything is asked."""

import pytest

from nlu.config.addresses import address_problems, is_object, object_reference
from nlu.config.errors import UserError
from nlu.storage.locations import Place, parse_place, refuse_root


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("s3://b/a/c", Place("s3", "b", "a/c")),
        ("S3A://b/a/", Place("s3", "b", "a", names_folder=True)),
        ("oss://b", Place("oss", "b", "", names_folder=True)),
        ("oss://b/", Place("oss", "b", "", names_folder=True)),
        ("/a/b", Place("", "", "/a/b")),
        ("/a/b/", Place("", "", "/a/b", names_folder=True)),
        ("/a/./b/../c", Place("", "", "/a/c")),
        ("/a/.", Place("", "", "/a", names_folder=True)),
        ("/a/..", Place("", "", "/", names_folder=True)),
        ("file:///a/b%20c", Place("", "", "/a/b c")),
        ("https://host/x?y", Place("https", "", "https://host/x?y")),
    ],
)
def test_a_text_names_one_place(text: str, place: Place) -> None:
    assert parse_place(text) == place


def test_a_place_has_a_name_and_places_within_it() -> None:
    names = ["s3://b/a/c", "s3://b", "/a/b", "https://host/x.csv?y#z", f"hf://org/name#sha256={'0' * 64}"]
    assert [parse_place(text).name for text in names] == ["c", "", "b", "x.csv", "name"]
    within = [parse_place(text).within("x/y") for text in ("s3://b/a/", "s3://b", "/", "/a/")]
    assert [place.path for place in within] == ["a/x/y", "x/y", "/x/y", "/a/x/y"]
    assert not any(place.names_folder for place in within)
    assert [parse_place(text).shown for text in ("s3://b", "oss://b/a/")] == ["s3://b", "oss://b/a"]
    assert [parse_place(text).is_root for text in ("s3://b", "/", "/a", "s3://b/a")] == [True, True, False, False]
    assert [is_object(text) for text in ("S3://b", "s3a://b", "OSS://b", "gs://b", "s3")] == [*[True] * 3, False, False]
    with pytest.raises(UserError, match="s3://b is a whole bucket, which is never x"):
        refuse_root(parse_place("s3://b"), "x")
    with pytest.raises(UserError, match="/ is the whole disk, which is never x"):
        refuse_root(parse_place("/"), "x")


@pytest.mark.parametrize("key", ["a//b", "../a", "a/..", "./a", "a/./b", "/a", "a\\..\\b", "a\0b"])
def test_a_key_that_could_lead_elsewhere_is_refused(key: str) -> None:
    with pytest.raises(UserError, match="could lead out of its folder"):
        parse_place(f"s3://b/{key}")


@pytest.mark.parametrize("url", ["s3://b/a", "s3a://b/a/", "oss://b/a/b..c"])
def test_the_folder_of_a_bucket_is_taken(url: str) -> None:
    assert object_reference(url, "mirror").location == url and address_problems(url, "mirror") == []


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("s3://b", "is not a folder in a bucket"), ("s3://b/", "is not a folder in a bucket"),
        ("s3:///a", "is not a folder in a bucket"), ("gs://b/a", "is not a folder in a bucket"),
        ("/a/b", "is not a folder in a bucket"),
        ("s3://b/a/../c", "has '..' or one of"), ("s3://b/..", "has '..' or one of"),
        *((f"s3://b/a{sign}", "has '..' or one of") for sign in "*?[]#\\"),
    ],
)  # fmt: skip
def test_other_addresses_are_refused_as_a_mirror(url: str, said: str) -> None:
    (problem,) = address_problems(url, "mirror")
    assert problem.startswith("mirror is ") and said in problem
