"""Tests of bert_jax.training.overview; tests/test_train.py covers `finish`."""

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest

from bert_jax.training import overview
from tests.conftest import make_config, use_mesh


@pytest.mark.parametrize(
    ("first_step", "init_from", "start"),
    [
        (0, "", "from random weights"),
        (0, "my_bert", "from the weights in my_bert with a new optimizer"),
        (7, "my_bert", "resuming at step 7"),
        (20, "", "already complete"),
    ],
)
def test_describe_reports_the_sizes_and_the_start(
    monkeypatch, first_step, init_from, start
):
    config = make_config(phase={"num_steps": 20})
    config = dataclasses.replace(config, init_from=init_from)
    shards = {"train": [SimpleNamespace(num_tokens=n) for n in (1000, 234)]}
    state = SimpleNamespace(params={"a": np.zeros((40, 50)), "b": np.zeros(7)})
    corpus = SimpleNamespace(shards=shards)
    options = {"xla_a": False}
    monkeypatch.setattr(overview.compilation, "compiler_options", lambda: options)
    sizes = overview.numbers(config, use_mesh(2, 1, 1), corpus, state)
    text = overview.describe(config, sizes, "w", first_step, last_step=20)
    assert "model:  2,007 parameters" in text
    assert "mesh data 2 x fsdp 1 x tensor 1, xla_a=False\n" in text
    assert "data:   1,234 tokens" in text
    assert f"{start}, workdir w" in text.splitlines()[-1]
