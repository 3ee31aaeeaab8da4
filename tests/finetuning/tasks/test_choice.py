"""Tables are converted to contexts with choices."""

import pytest

from bert_jax.errors import ConfigError
from bert_jax.finetuning.tables import Table
from tests.finetuning import tuned

SWAG = Table(
    "csv:swag.csv",
    {
        "sent1": ["He runs.", "She sits."],
        "sent2": ["He", "She"],
        "ending0": ["falls.", "eats."],
        "ending1": ["flies.", "reads."],
        "label": ["1", "0"],
    },
)


def parse(table, role="train", label="label", **keys):
    task = tuned.make_task("multiple_choice", label=label, **keys)
    return task.parse(table, (), role)


def test_the_second_text_is_prefixed_to_choices_in_columns():
    columns = ("ending0", "ending1")
    found = parse(SWAG, text=("sent1", "sent2"), choices=columns)
    assert found.contexts == ["He runs.", "She sits."]
    assert found.choices == [["He falls.", "He flies."], ["She eats.", "She reads."]]
    assert found.labels.tolist() == [1, 0]


def test_choices_in_a_list():
    table = Table("jsonl:a", {"q": ["x", "y"], "c": [["a", "b"], ["c", "d"]]})
    found = parse(table, "test", text=("q",), choices=("c",))
    assert found.choices == [["a", "b"], ["c", "d"]] and found.labels is None
    table.columns["c"] = ["['a', 'b']", '["c", "d"]']  # of a csv
    assert parse(table, "test", text=("q",), choices=("c",)).choices == found.choices


def test_examples_without_a_label_are_dropped_and_counted():
    columns = {"t": ["x", "y"], "o": [["p", "q"]] * 2, "label": [-1, 1]}
    found = parse(Table("jsonl:a", columns), text=("t",), choices=("o",))
    assert found.contexts == ["y"] and found.labels.tolist() == [1]
    assert len(found.choices) == found.num_unlabelled == 1


@pytest.mark.parametrize(
    ("choices", "label", "message"),
    [
        (("c",), "", "example 2, has 1 choices, but the first has 2"),
        (("lists",), "", "example 2, .* column of config.task.choices"),
        (("objects",), "", "example 2, .* column of config.task.choices"),
        (("q",), "", "'x' in the only column of config.task.choices; a single"),
        (("q", "d"), "", "^config.task.choices='d': .* has no column"),
        (("q", "q"), "n", r"has the label '2', .* in config.task.choices \(0, 1\)"),
    ],
)
def test_invalid_choices_and_labels_are_errors(choices, label, message):
    columns = {
        "q": ["x", "y"],
        "c": [["a", "b"], ["c"]],
        "lists": [["a"], [["b", "c"]]],
        "objects": [["a"], [{"b": 1}]],
        "n": ["2", "0"],
    }
    role = "train" if label else "test"
    with pytest.raises(ConfigError, match=message):
        parse(Table("jsonl:a", columns), role, label, text=("q",), choices=choices)
