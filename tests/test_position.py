"""Every step has its batch, whatever was skipped before it."""

import dataclasses

import pytest

from bert_jax import config as config_lib
from bert_jax import position
from bert_jax.position import Skip
from tests.conftest import make_config


def two_phases() -> config_lib.ExperimentConfig:
    config = make_config(phase={"num_steps": 20})
    second = dataclasses.replace(config.phases[0], num_steps=5)
    return dataclasses.replace(config, phases=(config.phases[0], second))


@pytest.mark.parametrize(
    ("step", "phase_and_done"),
    [
        (0, (0, 0)),
        (19, (0, 19)),
        (20, (1, 0)),
        (24, (1, 4)),
        (25, (1, 5)),  # the end of the run
    ],
)
def test_phase_of_a_step(step, phase_and_done):
    assert position.phase_of(two_phases(), step) == phase_and_done


def test_phases_start_where_the_last_one_ends():
    assert position.phase_starts(two_phases()) == [0, 20]


@pytest.mark.parametrize(
    ("first_step", "last_step", "skips"),
    [
        (4, 7, (Skip(0, 4, 3),)),
        (16, 20, (Skip(0, 16, 4),)),
        (16, 22, (Skip(0, 16, 4), Skip(1, 0, 2))),
        (21, 24, (Skip(1, 1, 3),)),
    ],
)
def test_a_window_is_left_out_and_nothing_else(first_step, last_step, skips):
    config = two_phases()
    assert position.window(config, first_step, last_step) == skips

    def taken(skips):
        steps = range(config.num_steps)
        return [position.batch_of(config, step, skips) for step in steps]

    before, after = taken(()), taken(skips)
    assert len(set(after)) == len(after)
    assert after[:first_step] == before[:first_step]
    assert not set(after) & set(before[first_step:last_step])
    # In each phase the batches go on where the window ends.
    for index, phase in enumerate(config.phases):
        batches = {batch for phase_index, batch in after if phase_index == index}
        skipped = sum(s.num_batches for s in skips if s.phase_index == index)
        assert max(batches) == phase.num_steps - 1 + skipped


def test_windows_add_up():
    config = two_phases()
    first = position.window(config, 4, 7)
    assert position.batch_of(config, 4, first) == (0, 7)
    both = first + position.window(config, 4, 6)
    assert position.batch_of(config, 3, both) == (0, 3)
    assert position.batch_of(config, 4, both) == (0, 9)
