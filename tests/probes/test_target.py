"""Probes need no more memory than a training step."""

import dataclasses

import jax
import pytest

from bert_jax.probes.target import MAX_ROWS, Target
from tests.conftest import make_config
from tests.models import TOKENIZER


@pytest.mark.parametrize(
    ("sizes", "accumulation_steps", "rows"),
    [((8,), 1, 4), ((64, 16), 4, 2), ((8192,), 1, MAX_ROWS), ((1,), 1, 1)],
)
def test_a_batch_has_at_most_the_tokens_of_a_microbatch(
    sizes, accumulation_steps, rows
):
    config = make_config(accumulation_steps=accumulation_steps)
    phases = tuple(
        dataclasses.replace(config.phases[0], global_batch_size=size) for size in sizes
    )
    config = dataclasses.replace(config, phases=phases)
    target = Target(config, TOKENIZER, None, jax.sharding.get_mesh())  # type: ignore
    assert target.batch_size == rows
    assert target.max_length == config.model.max_position_embeddings
    assert target.dtype == "float32"
