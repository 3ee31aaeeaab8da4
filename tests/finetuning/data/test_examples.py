"""Tables are converted to texts, pairs and choices."""

import ast

import pytest

from bert_jax.errors import ConfigError
from bert_jax.finetuning.data import examples
from bert_jax.finetuning.data.tables import Table

TABLE = Table(
    "tsv:dev.tsv",
    {
        "premise": ["It rains.", "It is dry."],
        "hypothesis": ["It is wet.", None],
        "gold": ["yes", "no"],
        "score": ["4.5", "0"],
        "kinds": ["0,1", ""],
        "place": ["7", 3],
    },
)
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


def test_single_texts_and_pairs():
    found = examples.read_texts(
        TABLE, "classification", ("premise",), "gold", "", ("no", "yes"), "labels"
    )
    assert found.a == ["It rains.", "It is dry."] and found.b is None
    assert found.labels.tolist() == [1, 0]
    pair = examples.read_texts(
        TABLE, "regression", ("premise", "hypothesis"), "score", "", ("score",), ""
    )
    assert pair.b == ["It is wet.", ""] and pair.labels.tolist() == [4.5, 0]
    many = examples.read_texts(
        TABLE, "multi_label", ("premise",), "kinds", "", ("joy", "fear"), "labels"
    )
    assert many.labels.tolist() == [[1, 1], [0, 0]]
    test = examples.read_texts(
        TABLE, "classification", ("premise",), "", "place", (), ""
    )
    assert test.labels is None and test.index.tolist() == [7, 3]
    assert found.index.tolist() == [0, 1]


def test_class_names_are_those_of_the_training_set():
    assert examples.label_names(TABLE, "gold", "classification") == ("no", "yes")
    assert examples.label_names(TABLE, "score", "regression") == ("score",)
    assert examples.label_names(TABLE, "kinds", "multi_label") == ("0", "1")


@pytest.mark.parametrize(
    "values, message",
    [
        (["a", "a"], "^tsv:a has c='a' in all examples"),
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
        examples.label_names(Table("tsv:a", {"c": values}), "c", "classification")


def test_labels_that_are_classes():
    for values, kind, names in (
        (["1", "-1", "1"], "classification", ("-1", "1")),
        ([["b", ""], None, "a,", "['c']"], "multi_label", ("a", "b", "c")),
    ):
        assert examples.label_names(Table("jsonl:a", {"c": values}), "c", kind) == names


def test_examples_without_a_label_are_dropped_and_counted():
    table = Table("tsv:a", {"t": list("vwxyz"), "c": ["b", "-", "a", None, "b"]})
    with pytest.raises(ConfigError) as caught:
        examples.label_names(table, "c", "classification")
    _, names, _ = str(caught.value).split('"')
    assert names == "('a', 'b')"
    columns = ("classification", ("t", "t"), "c", "", ast.literal_eval(names), "labels")
    found = examples.read_texts(table, *columns)
    assert (found.a, found.b, found.labels.tolist()) == (
        ["v", "x", "z"],
        ["v", "x", "z"],
        [1, 0, 1],
    )
    assert found.index.tolist() == [0, 2, 4] and found.num_unlabelled == 2
    table = Table("jsonl:a", {"t": ["x", "y"], "o": [["p", "q"]] * 2, "c": [-1, 1]})
    choices = examples.read_choices(table, ("t",), ("o",), "c")
    assert choices.contexts == ["y"] and choices.labels.tolist() == [1]
    assert len(choices.choices) == choices.num_unlabelled == 1


@pytest.mark.parametrize("value", [["a", "cat"], {"a": 1}])
def test_a_list_is_not_a_text(value):
    table = Table("jsonl:a", {"t": ["x", value], "q": ["r"] * 2, "o": [["p"], [value]]})
    with pytest.raises(
        ConfigError, match="^jsonl:a, example 2, has .*in a column of co"
    ):
        examples.read_texts(table, "regression", ("t",), "", "", (), "")
    with pytest.raises(
        ConfigError, match="example 2, .* column of config.task.choices"
    ):
        examples.read_choices(table, ("q",), ("o",), "")


def test_a_key_that_some_lines_lack_is_an_error_if_it_is_a_text():
    table = Table(
        "jsonl:a", {"t": ["x", None], "n": [None, 1]}, absent={"t": 2, "n": 1}
    )
    with pytest.raises(
        ConfigError, match="jsonl:a, line 2, has no 't', which config.ta"
    ):
        examples.read_texts(table, "regression", ("t",), "", "", (), "")


def test_the_second_text_is_prefixed_to_choices_in_columns():
    found = examples.read_choices(
        SWAG, ("sent1", "sent2"), ("ending0", "ending1"), "label"
    )
    assert found.contexts == ["He runs.", "She sits."]
    assert found.choices == [["He falls.", "He flies."], ["She eats.", "She reads."]]
    assert found.labels.tolist() == [1, 0]


def test_choices_in_a_list():
    table = Table("jsonl:a", {"q": ["x", "y"], "c": [["a", "b"], ["c", "d"]]})
    found = examples.read_choices(table, ("q",), ("c",), "")
    assert found.choices == [["a", "b"], ["c", "d"]] and found.labels is None
    table.columns["c"][1] = ["c"]
    with pytest.raises(ConfigError, match="example 2, has 1 choices, but the first ha"):
        examples.read_choices(table, ("q",), ("c",), "")
    with pytest.raises(
        ConfigError, match="'He' in the only column of config.task.choices; a single"
    ):
        examples.read_choices(SWAG, ("sent1",), ("sent2",), "")
    table.columns["c"] = ["['a', 'b']", '["c", "d"]']  # of a csv
    found = examples.read_choices(table, ("q",), ("c",), "")
    assert found.choices == [["a", "b"], ["c", "d"]]


def test_errors_name_the_column_and_the_label():
    with pytest.raises(
        ConfigError, match="^config.task.choices names the column 'ending2', but"
    ):
        examples.read_choices(SWAG, ("sent1",), ("ending0", "ending2"), "label")
    SWAG.columns["wrong"] = ["2", "0"]
    with pytest.raises(
        ConfigError, match=r"has the label '2', .* in config.task.choices \(0, 1\)"
    ):
        examples.read_choices(SWAG, ("sent1",), ("ending0", "ending1"), "wrong")


def test_similarity_is_a_cosine_from_0_to_1():
    table = Table("here", {"a": ["x", "y"], "b": ["z", "w"], "label": ["0", "2.5"]})
    found = examples.read_similarity(table, ("a", "b"), "label", 5.0)
    assert found.labels is not None and found.labels.tolist() == [0.0, 0.5]
    assert (found.a, found.b) == (["x", "y"], ["z", "w"])
    assert examples.read_similarity(table, ("a", "b"), "", 5.0).labels is None
    with pytest.raises(ConfigError, match="example 2, has label=2.5; it must be betw"):
        examples.read_similarity(table, ("a", "b"), "label", 2.0)


@pytest.mark.parametrize(
    ("label", "index", "key"),
    [
        ("", "idx", "config.task.index"),
        ("grade", "", "config.task.label"),
    ],
)
def test_an_error_names_the_key_of_a_missing_column(label, index, key):
    with pytest.raises(ConfigError, match=f"^{key} names the column '{label or index}"):
        examples.read_texts(
            TABLE, "regression", ("premise",), label, index, ("score",), ""
        )


def test_errors_name_the_key_of_an_invalid_value():
    with pytest.raises(
        ConfigError, match=r"example 1, has the label 'yes', .* config.task.labels \(no"
    ):
        examples.read_texts(
            TABLE,
            "classification",
            ("premise",),
            "gold",
            "",
            ("no", "maybe"),
            "config.task.labels",
        )
    with pytest.raises(ConfigError, match="'yes' in the column of config.task.label;"):
        examples.read_texts(TABLE, "regression", ("premise",), "gold", "", (), "")
    with pytest.raises(ConfigError, match="'0,1' in the column of config.task.index;"):
        examples.read_texts(TABLE, "regression", ("premise",), "", "kinds", (), "")
