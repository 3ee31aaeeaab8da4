"""Inputs are converted to examples, or an error names the required form."""

import dataclasses

import pytest

from bert_jax.errors import ConfigError
from bert_jax.finetuning import config as tasks_config
from bert_jax.inference import examples
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
        (text_task(PAIR), [("a", "b"), ("c",)], "1 text; .* must be text ||| text$"),
        (text_task(SINGLE), [("a", "b")], "has 2 texts; each input must be a text$"),
        (task("squad1"), [("a",)], "each input must be question ||| paragraph$"),
        (task("swag"), [("a", "b")], "each input must be context"),
        (task("swag"), [("a", "b", "c"), ("a", "b", "c", "d")], "as the first"),
        (task("similarity"), [("a",)], "each input must be text ||| text$"),
    ],
)
def test_an_input_with_too_few_or_too_many_texts_fails(task_config, lines, message):
    message = message.replace("|||", r"\|\|\|")
    with pytest.raises(ConfigError, match=message):
        examples.examples_of(task_config, lines, False)


def test_inputs_are_converted_to_single_texts_or_pairs():
    single = examples.examples_of(text_task(SINGLE), [("a",), ("b",)], False)
    assert (single.a, single.b) == (["a", "b"], None)
    pairs = examples.examples_of(text_task(PAIR), [("a", "b"), ("c", "")], False)
    assert (pairs.a, pairs.b) == (["a", "c"], ["b", ""])
