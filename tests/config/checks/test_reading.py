"""Words that Hydra would not read reach it in quotes, and mean themselves."""

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from nlu.config.command_line import quoted, read_override
from nlu.config.errors import UserError


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("data.train=数据/训练 集.csv", "数据/训练 集.csv"),
        ("data.train=s3://bucket/数据:1.csv", "s3://bucket/数据:1.csv"),
        ("data.fields={text: 评论, label: 标签}", {"text": "评论", "label": "标签"}),
        ('data.fields={text: "评论, 全", label: stars}', {"text": "评论, 全", "label": "stars"}),
        ("data.labels=[好评, '差评', 1, neutral]", ["好评", "差评", 1, "neutral"]),
        ("a=naïve", "naïve"),
        ('data.quote="', '"'),
        ("data.label_separator=, ", ", "),
        ("data.separator=,", ","),
        ("output=odps://p/tables/found/pt=1/city=杭州", "odps://p/tables/found/pt=1/city=杭州"),
        ("data.train=http://h:80/rows.tsv?version=2&x=a~b", "http://h:80/rows.tsv?version=2&x=a~b"),
        ("data.dev={a: http://h/x?v=1, b: y://h/x}", {"a": "http://h/x?v=1", "b": "y://h/x"}),
        ("data.train=[pypi://x==1.0/a.csv#sha256=ab,b.csv]", ["pypi://x==1.0/a.csv#sha256=ab", "b.csv"]),
        (
            "a=[odps://p/tables/x/pt=1, 'odps://p/tables/y/pt=2', z]",
            ["odps://p/tables/x/pt=1", "odps://p/tables/y/pt=2", "z"],
        ),
    ],
)
def test_words_of_other_scripts_mean_themselves(given: str, meant: object) -> None:
    assert OverridesParser.create().parse_override(quoted(given)).value() == meant


def test_the_values_of_a_sweep_stay_several() -> None:
    parsed = OverridesParser.create().parse_override(quoted("data.train=一.csv,二.csv,three.csv"))
    assert parsed.is_sweep_override() and list(parsed.sweep_string_iterator()) == ['"一.csv"', '"二.csv"', "three.csv"]


def test_null_among_the_values_of_choice_is_answered_with_a_list_that_hydra_reads() -> None:
    with pytest.raises(UserError) as raised:
        read_override("loss.class_weights=choice(null,inverse_frequency)")
    remedy = str(raised.value).split("as in ", 1)[1].strip("'")
    assert remedy == "loss.class_weights=null,inverse_frequency"
    assert list(read_override(remedy).sweep_iterator()) == [None, "inverse_frequency"]
