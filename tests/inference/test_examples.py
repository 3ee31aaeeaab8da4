"""Lines are converted to examples, or an error names the required form."""

import dataclasses

import pytest

from bert_jax.errors import ConfigError
from bert_jax.finetuning import config as tasks_config
from bert_jax.inference import line_input
from tests.finetuning.test_config import config_dict

SINGLE, PAIR, UNKNOWN = ("a",), ("a", "b"), ()


def task(name):
    return tasks_config.from_config_dict(config_dict(name)).task


def text_task(text):
    return dataclasses.replace(task("sst2"), text=text)


@pytest.mark.parametrize(
    ("task_config", "lines", "message"),
    [
        (text_task(UNKNOWN), [("a", "b"), ("c",)], "a text, or two .* as the first"),
        (text_task(PAIR), [("a", "b"), ("c",)], "1 part; .* must be text ||| text$"),
        (text_task(SINGLE), [("a", "b")], "with 2 parts; each line must be a text$"),
        (task("squad1"), [("a",)], "each line must be question ||| paragraph$"),
        (task("swag"), [("a", "b")], "each line must be context"),
        (task("swag"), [("a", "b", "c"), ("a", "b", "c", "d")], "as the first"),
        (task("similarity"), [("a",)], "each line must be text ||| text$"),
    ],
)
def test_a_line_with_too_few_or_too_many_parts_is_an_error(task_config, lines, message):
    message = message.replace("|||", r"\|\|\|")
    with pytest.raises(ConfigError, match=message):
        line_input.examples_of(task_config, lines, len(lines[0]), False)


def test_lines_are_converted_to_single_texts_or_pairs():
    single = line_input.examples_of(text_task(SINGLE), [("a",), ("b",)], 1, False)
    assert (single.a, single.b) == (["a", "b"], None)
    pairs = line_input.examples_of(text_task(PAIR), [("a", "b"), ("c", "")], 2, False)
    assert (pairs.a, pairs.b) == (["a", "c"], ["b", ""])
