"""Tests of the choices of a plan."""

import importlib

import hypothesis
import pytest
from hypothesis import strategies as st

from bert_jax import config as config_lib
from bert_jax.configs import base, base_modern, gpu_day
from bert_jax.distributed import chips
from bert_jax.plan.choices import Plan

continued = importlib.import_module("bert_jax.configs.continue")  # a keyword
MB, GB = 1e6, 1e9


def planned(module, text_bytes, hours, device, **changes):
    """Returns the plan's rows by name, and its validated config."""
    config = module.get_config()
    for key, value in changes.items():
        config[key] = value
    plan = Plan(config, text_bytes, text_bytes / 4.7, hours, *chips.count(device))
    rows = {name: f"{value}: {reason}" for name, value, reason in plan.choose()}
    return rows, config_lib.from_config_dict(plan.config)


@pytest.mark.parametrize(
    ("text_bytes", "hours", "device", "model", "vocab_size", "dropout"),
    [
        (12 * MB, 24, "a100", (4, 256), 4_000, 0.1),
        (48 * MB, 24, "a100", (12, 512), 8_000, 0.1),
        (500 * MB, 24, "h100", (12, 768), 16_000, 0.1),
        (2 * GB, 150, "a100", (12, 768), 30_522, 0.1),
        (20 * GB, 24, "4090", (12, 768), 30_522, 0.0),  # not even one epoch
        (20 * GB, 0.1, "a100", (4, 256), 30_522, 0.0),
    ],
)
def test_vocabulary_model_and_dropout(
    text_bytes, hours, device, model, vocab_size, dropout
):
    _, config = planned(gpu_day, text_bytes, hours, device)
    found = config.model
    assert (found.num_hidden_layers, found.hidden_size) == model
    assert found.num_attention_heads * 64 == found.intermediate_size // 4 == model[1]
    assert config.tokenizer.vocab_size == vocab_size
    assert found.hidden_dropout_prob == found.attention_probs_dropout_prob == dropout


def test_more_hours_than_the_text_is_good_for_are_not_used():
    rows, config = planned(gpu_day, 2 * GB, 1_000, "a100")
    (phase,) = config.phases
    epochs = phase.num_steps * phase.global_batch_size * 512 / (2 * GB / 4.7)
    assert epochs == pytest.approx(40, rel=0.01) and rows["epochs"].startswith("~40,")
    assert "the text is the limit" in rows["hours"]
    rows, config = planned(gpu_day, 2 * GB, 10, "a100")
    assert config.phases == (phase,)  # a maximum: the clock ends the run
    assert config.budget_hours == 10 and rows["hours"].startswith("~10 of 10:")
    assert "~34,800, warmup 2,090" in rows["steps"] and config.eval.every_steps == 1_740


def test_phases_keep_their_shares_and_the_last_one_is_ended_by_the_clock():
    _, config = planned(base, 2 * GB, 2, "h100")
    first, last = config.phases
    rows, all_of_it = planned(base, 2 * GB, 1_000, "h100")
    assert all_of_it.phases[0].num_steps == 9 * all_of_it.phases[1].num_steps
    assert first.num_steps < all_of_it.phases[0].num_steps
    assert last.num_steps == all_of_it.phases[1].num_steps
    assert config.optimizer.schedule == "wsd" and config.optimizer.decay_steps == 0
    assert "dropout 0.1: at most 40, as BERT" in rows["epochs"]


def test_the_batch_is_halved_for_short_runs_and_divided_for_small_memories():
    rows, config = planned(gpu_day, 100 * MB, 24, "4090")
    assert config.phases[0].global_batch_size == 128 and config.data.num_streams == 8
    assert "divided by 2 to take 10,000 steps" in rows["batch"]
    parts = {}
    for device in ("l4", "a100", "h100", "v5e-8"):
        _, config = planned(gpu_day, 20 * GB, 200, device)
        assert config.phases[0].global_batch_size == 256
        parts[device] = config.accumulation_steps
    assert parts == {"l4": 8, "a100": 4, "h100": 1, "v5e-8": 1}


def test_a_published_model_keeps_its_sizes_vocabulary_and_rate():
    rows, config = planned(continued, 100 * MB, 24, "4090", init_from="bert")
    given = config_lib.from_config_dict(continued.get_config())
    assert config.model == given.model and config.tokenizer == given.tokenizer
    assert config.optimizer.learning_rate == given.optimizer.learning_rate
    assert rows["start"].startswith("bert: ") and rows["epochs"].startswith("~10,")
    assert rows["held-out loss"].startswith("not known")


@hypothesis.given(
    st.sampled_from((base, base_modern, gpu_day)),
    st.floats(1e5, 1e13),
    st.floats(0.01, 1e4),
    st.sampled_from((*chips.GPUS, "8*h100", "v3-8", "v4-8", "v5e-256", "2*tpu7x-16")),
)
def test_every_plan_is_a_valid_config(module, text_bytes, hours, device):
    _, config = planned(module, text_bytes, hours, device)
    kind, num_devices = chips.count(device)
    for phase in config.phases:
        assert phase.global_batch_size % (num_devices * config.accumulation_steps) == 0
