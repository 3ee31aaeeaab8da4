"""The inputs of a sweep: predictions with any parameters, and their description."""

import jax
import numpy as np
import pytest

from bert_jax.finetuning import setup as setup_lib
from bert_jax.finetuning.data.conll import Sentences
from bert_jax.finetuning.data.datasets import Datasets, Split
from bert_jax.finetuning.data.examples import Texts
from bert_jax.finetuning.tasks.choice import Choices
from tests.finetuning import labelled


def test_the_model_has_the_encoders_sizes_and_the_configs_dropout(tmp_path):
    setup = labelled.make_setup(
        tmp_path, dropout__hidden_prob=0.25, dropout__attention_prob=0.5
    )
    model = setup.model
    assert model.hidden_size == setup.encoder.config.hidden_size
    assert model.hidden_dropout_prob == 0.25
    assert model.attention_probs_dropout_prob == 0.5
    assert setup.num_steps == len(setup.datasets.train.features) * 3 // 8


def test_any_parameters_are_evaluated_on_any_set(tmp_path):
    setup = labelled.make_setup(tmp_path)
    _, params = setup.build(jax.random.key(0))
    for split in (setup.datasets.train, setup.datasets.dev[0]):
        right = setup.predict(params, split) == split.examples.labels
        found = setup.evaluate(params, split)
        assert 0 < right.mean() < 1  # otherwise the test could not fail
        assert found["accuracy"] == pytest.approx(right.mean())


TEXTS = (["a", "b", "c"], None)


@pytest.mark.parametrize(
    "names, examples, expected",
    [
        (
            ("no", "yes"),
            Texts(*TEXTS, np.array([0, 1, 1], np.int32), np.arange(3)),
            ["here: no 1, yes 2"],
        ),
        (
            ("a", "b", "c"),
            Texts(*TEXTS, np.array([[1, 1, 0]] * 2, np.float32), np.arange(3)),
            ["here: a 2, b 2, c 0"],
        ),
        (
            tuple(map(str, range(30))),
            Texts(*TEXTS, np.array([*range(30), 7, 7], np.int32), np.arange(3)),
            ["here: from 29 1 to 7 3"],
        ),
        (
            ("O", "B-A", "I-A", "B-B", "I-B"),
            Sentences("", [["a"] * 4], [["B-A", "I-A", "B-B", "B-A"]]),
            ["here: A 2, B 1"],
        ),
        (("x",), Texts(*TEXTS, np.array([0.5, 1, 1], np.float32), np.arange(3)), []),
        ((), Choices(["a"], [["b", "c"]], np.array([0])), []),
    ],
)
def test_the_examples_of_each_class_are_counted(names, examples, expected):
    train = Split("here", examples, None)
    none = Split("none", Choices([], [], None), None)
    datasets = Datasets(names, train, (none,), (none,))
    assert setup_lib.class_counts(datasets) == expected
