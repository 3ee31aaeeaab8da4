"""Tables are converted to texts and pairs with labels."""

import ast
import json

import numpy as np
import pytest

from bert_jax.errors import ConfigError
from bert_jax.finetuning.tables import Table
from bert_jax.finetuning.tasks.base import Texts
from tests.finetuning import tuned

TABLE = Table(
    "tsv:dev.tsv",
    {
        "premise": ["It rains.", "It is dry."],
        "hypothesis": ["It is wet.", None],
        "gold": ["yes", "no"],
        "score": ["4.5", "0"],
        "kinds": ["0,1", ""],
        "place": ["7", 3],
        "list": ["x", ["a", "cat"]],
        "object": ["x", {"a": 1}],
        "absent": ["x", None],
    },
    absent={"absent": 2, "place": 1},  # "place" is no text
)


def parse(table, kind="classification", role="train", names=(), **keys):
    """Returns the examples of a table, with the text column "premise"."""
    if "index" in keys:  # it is read for a submission to GLUE
        keys["glue"] = ("sst2",)
    task = tuned.make_task(kind, **{"text": ("premise",)} | keys)
    return task.parse(table, names, role)


def names_in(values, kind="classification", spec="tsv:a"):
    table = Table(spec, {"c": values})
    return tuned.make_task(kind, label="c").label_names(table)


def test_single_texts_and_pairs():
    found = parse(TABLE, label="gold", names=("no", "yes"))
    assert found.a == ["It rains.", "It is dry."] and found.b is None
    assert found.labels.tolist() == [1, 0]
    columns = ("premise", "hypothesis")
    pair = parse(TABLE, "regression", text=columns, label="score")
    assert pair.b == ["It is wet.", ""] and pair.labels.tolist() == [4.5, 0]
    many = parse(TABLE, "multi_label", label="kinds", names=("joy", "fear"))
    assert many.labels.tolist() == [[1, 1], [0, 0]]
    test = parse(TABLE, role="test", index="place")
    assert test.labels is None and test.index.tolist() == [7, 3]
    assert found.index.tolist() == [0, 1]


def test_class_names_are_those_of_the_training_set():
    for label, kind, names in (
        ("gold", "classification", ("no", "yes")),
        ("score", "regression", ("score",)),
        ("kinds", "multi_label", ("0", "1")),
    ):
        assert tuned.make_task(kind, label=label).label_names(TABLE) == names
    assert names_in(["1", "-1", "1"]) == ("-1", "1")
    assert names_in([["b", ""], None, "a,", "['c']"], "multi_label") == tuple("abc")
    with pytest.raises(ConfigError, match="^tsv:a has no label in its column 'c';"):
        names_in(["", None], "multi_label")


@pytest.mark.parametrize(
    "values, message",
    [
        (["a", "a"], "^tsv:a has c='a' in all examples"),
        ([f"0.{i}" for i in range(11)], "has 11 different numbers in c, such as 0.0;"),
        (["a", ["b"]], r"^tsv:a, example 2, has the label \['b'\], .*=multi_label$"),
        (["a", None, "b"], "^tsv:a, example 2, has c='', as 1 of 3 examples;"),
        (["a", "b", " "], "example 3, has c='', "),
        (["b", "-", "-", "a"], r"example 2, has c='-', as 2 of 4 .*=\"\('a', 'b'\)\";"),
        ([0, -1, 1, 2, -1], r"c='-1', as 2 of 5 .* .*=\"\('0', '1', '2'\)\"; if '-1'"),
        (["1", "-1", "0"], "has c='-1', .* is a class, name it as well"),
        (["a", "nan", "b"], "has c='nan'"),
    ],
)
def test_labels_that_are_no_classes_are_errors(values, message):
    with pytest.raises(ConfigError, match=message):
        names_in(values)


def test_examples_without_a_label_are_dropped_and_counted():
    columns = {"premise": list("vwxyz"), "c": ["b", "-", "a", None, "b"]}
    with pytest.raises(ConfigError) as caught:
        names_in(columns["c"])
    _, names, _ = str(caught.value).split('"')
    assert names == "('a', 'b')"
    table = Table("tsv:a", columns)
    pair, names = ("premise", "premise"), ast.literal_eval(names)
    found = parse(table, text=pair, label="c", names=names)
    assert found.a == found.b == ["v", "x", "z"]
    assert found.labels.tolist() == [1, 0, 1]
    assert found.index.tolist() == [0, 2, 4] and found.num_unlabelled == 2


def test_an_index_is_read_only_for_a_submission():
    task = tuned.make_task("regression", text=("premise",), index="none")
    assert task.parse(TABLE, (), "test").index.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (
            {"role": "test", "index": "idx"},
            "^config.task.index='idx': .* has no column",
        ),
        ({"label": "grade"}, "^config.task.label='grade': .* has no column"),
        ({"label": "gold"}, "'yes' in the column of config.task.label;"),
        ({"role": "test", "index": "kinds"}, "'0,1' in the column of config.task.ind"),
        ({"text": ("list",)}, "example 2, has .* in a column of config.task.text"),
        ({"text": ("object",)}, "^tsv:dev.tsv, example 2, has .* of config.task.text"),
        ({"text": ("absent",)}, "line 2, has no 'absent', which config.task.text"),
        (
            {"kind": "classification", "label": "gold", "labels": ("no", "maybe")},
            r"example 1, has the label 'yes', .* config.task.labels \(no, maybe",
        ),
    ],
)
def test_a_missing_column_or_an_invalid_value_is_an_error(keys, message):
    with pytest.raises(ConfigError, match=message):
        parse(TABLE, **{"kind": "regression", "names": keys.get("labels", ())} | keys)


def test_the_prediction_of_any_text_is_one_line(tmp_path):
    texts = Texts(["a\nb\u2028caf\u00e9"], None, None, np.arange(1))
    texts.write(tmp_path, np.array([1]), ("no", "yes"))
    lines = (tmp_path / "predictions.jsonl").read_text("utf-8").split("\n")
    assert json.loads(lines[0]) == {"text": texts.a[0], "label": "yes"}
    assert lines[1:] == [""]
