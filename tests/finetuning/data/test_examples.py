"""Labels are parsed as class names or numbers, sets of classes, or scores."""

import numpy as np
import pytest

from bert_jax.errors import ConfigError
from bert_jax.finetuning.data import examples
from bert_jax.finetuning.data.tables import Table

NAMES = ("negative", "positive")
KEY = "config.task.labels"


def located(values, spec="dev"):
    return Table(spec, {"x": values}).located("x", "")


def test_classes_by_name_or_number():
    found = examples.classes(located(["positive", "0", " negative", 1]), NAMES, KEY)
    assert found.dtype == np.int32 and found.tolist() == [1, 0, 0, 1]
    # Names take precedence over class numbers.
    assert examples.classes(located(["1", "0"]), ("1", "0"), KEY).tolist() == [0, 1]


def test_the_error_for_an_unknown_label_names_the_nearest():
    with pytest.raises(ConfigError) as error:
        examples.classes(located(["0", "postive"], "tsv:dev.tsv"), NAMES, KEY)
    assert str(error.value) == (
        "tsv:dev.tsv, example 2, has the label 'postive', which is not in"
        " config.task.labels (negative, positive, or 0 to 1); the nearest is 'positive'"
    )
    # No name is near "2".
    with pytest.raises(ConfigError, match=r"label '2', .*, positive, or 0 to 1\)$"):
        examples.classes(located(["2"]), NAMES, KEY)


def test_sets_of_classes():
    values = ["0,1", "positive", "", ["negative"], []]
    found = examples.class_sets(located(values), NAMES, KEY)
    assert found.tolist() == [[1, 1], [0, 1], [0, 0], [1, 0], [0, 0]]
    assert found.dtype == np.float32
    with pytest.raises(ConfigError, match="example 1, has the label 'x'"):
        examples.class_sets(located(["0,x"]), NAMES, KEY)


def test_scores():
    found = examples.scores(Table("dev", {"x": ["3.25", 5]}), "x", "config.task.label")
    assert found.dtype == np.float32 and found.tolist() == [3.25, 5]
    for wrong in ("much", "nan", None, ""):
        with pytest.raises(ConfigError, match="^dev, example 2, has .* in the column"):
            examples.scores(Table("dev", {"x": ["1", wrong]}), "x", "config.task.label")


def test_names_are_sorted_as_numbers_if_all_are_numbers():
    assert examples.names_in(["10", "9", "9"]) == ("9", "10")
    assert examples.names_in(["b", "a", "10", "9"]) == ("10", "9", "a", "b")


@pytest.mark.parametrize(
    "value, expected",
    [
        ("joy, anger , ", ["joy", "anger"]),
        ([" joy", 3], ["joy", "3"]),
        ("['joy', 'my anger']", ["joy", "my anger"]),
        (' ["joy", 3] ', ["joy", "3"]),
        ("[]", []),
        ("", []),
        (None, []),
        ("(sad), joy", ["(sad)", "joy"]),
    ],
)
def test_lists_and_text_with_commas_are_split(value, expected):
    assert examples.parts(value, "here") == expected


NO_LIST = "^here has the labels .* which are not a list"
VECTOR = "^here has the labels .* a 0 or 1 for each class; list"
NO_CLASS = "^here has the label .* a class is a text or a number"


@pytest.mark.parametrize(
    ("value", "message"),
    [
        *[(x, NO_LIST) for x in ("['a' 'b']", "[a, b]", "['a'", "{'a', 'b'}", "[1 2]")],
        *[(value, VECTOR) for value in ([0, 1, 1], [0, 0], "1,0,0", "[1, 1]")],
        *[([value], NO_CLASS) for value in (["a"], {"a": 1}, "['a', 'b']", "[]")],
    ],
)
def test_invalid_sets_of_classes_are_errors(value, message):
    with pytest.raises(ConfigError, match=message):
        examples.parts(value, "here")
    if message == NO_CLASS:
        with pytest.raises(ConfigError, match=message):
            examples.classes([(value[0], "here")], NAMES, KEY)


def test_values_without_a_label_are_no_class_unless_they_are_named():
    values = ["negative", "-", None, "", " ", "-1", -1, "NaN", "null", "1"]
    found = examples.classes(located(values), NAMES, KEY)
    assert found.tolist() == [0, -1, -1, -1, -1, -1, -1, -1, -1, 1]
    found = examples.classes(located(["-1", "0", "-"]), ("-1", "0", "-"), KEY)
    assert found.tolist() == [0, 1, 2]


def test_class_numbers_are_not_accepted_if_names_are_numbers():
    names = ("1", "3", "5")
    assert examples.classes(located(["5", "1"]), names, KEY).tolist() == [2, 0]
    for names in (("1", "3", "5"), ("-1", "1"), ("0.5", "1.5")):
        with pytest.raises(ConfigError, match="has the label '0'"):
            examples.classes(located(["0"]), names, KEY)
