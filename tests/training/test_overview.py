"""The lines that `train` prints about a run before its first step."""

import pytest

from bert_jax.training import overview
from tests.conftest import make_config

SIZES = {"num_parameters": 1000, "num_tokens": 5000, "compute_dtype": "float32"}
SIZES |= {"num_devices": 1, "num_processes": 1, "device_kind": "cpu", "mesh": "data 1"}


@pytest.mark.parametrize(
    ("first", "final", "line"),
    [
        (0.25, 0.0, None),  # 4 of 16 tokens
        (0.6, 0.1, "allows 25.0% of 16 tokens, below 60.0%"),
    ],
)
def test_masks_that_a_row_cannot_hold_are_mentioned(first, final, line):
    config = make_config(data__masked_lm_prob=first, data__final_masked_lm_prob=final)
    lines = overview.describe(config, SIZES, "runs/a", 0, 20).splitlines()
    assert lines[3].startswith("train:  20 steps of 8 x 16 tokens, from random weights")
    expected = [f"masks:  config.phases[0].max_predictions=4 {line}"] if line else []
    assert lines[4:] == expected
