"""Tests of building configs, and of the errors for invalid ones."""

import itertools
import json
import math

import pytest

from bert_jax import config as config_lib
from bert_jax import errors
from tests.conftest import make_config

WITH_BUDGET = {"budget_hours": 1.0, "optimizer__schedule": "wsd"}


@pytest.mark.parametrize("prob", [0.05, 0.15, 0.4])
@pytest.mark.parametrize("next_sentence", [True, False])
@pytest.mark.parametrize(
    "rate",
    ["data__masked_lm_prob", "data__final_masked_lm_prob", "eval__masked_lm_prob"],
)
def test_max_predictions_hold_the_masks_of_packed_pairs(prob, next_sentence, rate):
    """Compares the config's bound with every way to fill a row with pairs."""
    length, per_row, shortest = 24, 4, 5 if next_sentence else 3
    most = max(
        sum(max(1, round(n * prob)) for n in lengths)
        for k in range(1, per_row + 1)
        for lengths in itertools.combinations_with_replacement(
            range(shortest, length + 1), k
        )
        if sum(lengths) <= length
    )
    changes = {"data__next_sentence": next_sentence, rate: prob}
    changes = {"data__masked_lm_prob": 0.01, "eval__masked_lm_prob": 0.01} | changes
    phase = {"sequence_length": length, "max_sequences_per_row": per_row}
    with pytest.raises(errors.ConfigError):
        make_config(phase=phase | {"max_predictions": most - 1}, **changes)
    make_config(phase=phase | {"max_predictions": most + 1}, **changes)  # is enough


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model__hidden_size": 30}, r"hidden_size=30 .*num_attention_heads=4"),
        (
            {"checkpoint__keep_best": 1, "data__validation_fraction": 0.0},
            "keep_best=1 needs held-out documents",
        ),
        (
            {"tokenizer__kind": "sentencepiece_bpe", "data__word_segmented": True},
            r"word_segmented=True is for WordPiece",
        ),
        ({"data__max_line_bytes": 100}, r"max_line_bytes=100 must be at least 1024"),
        (
            {"data__max_document_bytes": 2**16},
            r"max_document_bytes=65536 must be at least max_line_bytes=1048576",
        ),
        (
            {"data__source_weights": (1.0, 2.0)},
            r"source_weights=\(1.0, 2.0\) must .* one weight for each of the 1 sources",
        ),
        ({"data__source_weights": (math.inf,)}, r"source_weights\[0\] is inf.* finite"),
        (
            {"optimizer__schedule": "cosine", "optimizer__warmup_steps": 20},
            r"warmup_steps=20 must be below the 20 steps of the schedule",
        ),
        (
            {"optimizer__schedule": "wsd", "optimizer__warmup_steps": 20},
            r"warmup_steps=20 must be below the 20 steps of the schedule",
        ),
        (
            {"optimizer__schedule": "wsd", "optimizer__warmup_steps": 3},
            r"decay_steps=0 must be from 1 to 17; try a fifth of 20 steps",
        ),
        (
            {"budget_hours": 1.0},
            "budget_hours=1.0 needs config.optimizer.schedule='wsd'",
        ),
        (
            WITH_BUDGET | {"data__final_masked_lm_prob": 0.1},
            r"final_masked_lm_prob=0.1 needs a number of steps, so .*budget_hours=0",
        ),
        (
            WITH_BUDGET | {"optimizer__average_steps": 5},
            r"average_steps=5 needs a number of steps, so config.budget_hours=0",
        ),
        (
            {"checkpoint__keep_steps": (3, 21)},
            r"keep_steps=\(3, 21\) must be at most the 20 steps of the run",
        ),
        (
            {"data__final_masked_lm_prob": 0.5},
            r"max_predictions=4 cannot hold .*final_masked_lm_prob=0.5; try 8",
        ),
        (
            {"optimizer__average_steps": 21},
            r"average_steps=21 must be at most the 20 steps of the run",
        ),
        (
            {"optimizer__decay_steps": 4},
            r"decay_steps=4 must be 0 with another schedule than 'wsd', or with config",
        ),
        (
            {"data__num_shards": 3, "data__num_streams": 3},
            r"global_batch_size=8 .*num_streams=3; try 6 or 9",
        ),
        (
            {"data__num_shards": 3, "data__num_streams": 2},
            r"num_streams=2 must divide num_shards=3",
        ),
        ({"mesh__data": 0}, r"config\.mesh .*at least 1, or -1"),
        ({"mesh__fsdp": -1}, r"config\.mesh .*at most one"),
        ({"model__type_vocab_size": 1}, r"type_vocab_size=1"),
        ({"seed": 2**63}, r"at least 0 and below 9223372036854775808"),
        ({"phase": {"sequence_length": 64}}, r"max_position_embeddings=32"),
        (
            {"phase": {"max_sequences_per_row": 8}},
            r"max_predictions=4 .*max_sequences_per_row=8 pairs; try 6$",
        ),
        (
            {"data__mask_random_prob": 0.3},
            r"mask_random_prob.*\(0\.8, 0\.3\) must have a sum of at most 1",
        ),
        ({"phase": {"max_predictions": 17}}, r"max_predictions=17 must be at most"),
        (
            {"trackers": ("mlflow", "wandbb")},
            r"trackers\[1\]='wandbb' must be .*; the nearest is wandb$",
        ),
        ({"profile": (5,)}, r"profile=\(5,\) must be \(first step, number of steps\)"),
        ({"profile": (18, 4)}, r"profile=\(18, 4\) must be .* the 20 steps of the run"),
    ],
)
def test_contradiction_errors_have_key_value_and_remedy(changes, message):
    with pytest.raises(errors.ConfigError, match=message):
        make_config(**changes)


def test_integers_are_accepted_as_floats():
    assert make_config(optimizer__clip_norm=2.0).optimizer.clip_norm == 2.0
    values = json.loads(make_config().to_json())
    values["optimizer"]["clip_norm"] = 2
    config = config_lib.from_config_dict(values)
    assert isinstance(config.optimizer.clip_norm, float)
