"""Tests of bert_jax.loading.start; test_branch tests it with real runs."""

from typing import Any

from bert_jax.loading import start
from bert_jax.loading.branch import Branch
from bert_jax.phases import Position


def test_the_first_step_is_that_of_the_own_checkpoint_or_of_the_branch():
    checkpoints: Any = None
    branch = Branch(30, Position("sha"), checkpoints, ())
    assert start.first_step(0, None) == 0
    assert start.first_step(0, branch) == 30
    assert start.first_step(40, branch) == start.first_step(40, None) == 40
