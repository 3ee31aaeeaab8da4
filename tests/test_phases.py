"""Tests of the mapping from steps to batches, with and without skipped batches."""

import itertools

import pytest

from bert_jax import phases
from bert_jax.phases import Skip
from tests.conftest import two_phases


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
    assert phases.phase_of(two_phases(), step) == phase_and_done


def taken(config, skips):
    return [phases.batch_of(config, step, skips) for step in range(config.num_steps)]


@pytest.mark.parametrize(
    ("first_step", "last_step", "skips"),
    [
        (4, 7, (Skip(0, 4, 3),)),
        (16, 20, (Skip(0, 16, 4),)),
        (16, 22, (Skip(0, 16, 4), Skip(1, 0, 2))),
        (21, 24, (Skip(1, 1, 3),)),
    ],
)
def test_rollback_skips_the_batches_of_its_steps(first_step, last_step, skips):
    config = two_phases()
    assert phases.skipping(config, (), first_step, last_step) == skips
    before, after = taken(config, ()), taken(config, skips)
    assert len(set(after)) == len(after)
    assert after[:first_step] == before[:first_step]
    assert not set(after) & set(before[first_step:last_step])
    # In each phase the batches continue after the skipped ones.
    for index, phase in enumerate(config.phases):
        batches = {batch for phase_index, batch in after if phase_index == index}
        skipped = sum(s.num_batches for s in skips if s.phase_index == index)
        assert max(batches) == phase.num_steps - 1 + skipped


def test_a_second_rollback_to_the_same_checkpoint():
    config = two_phases()
    first = phases.skipping(config, (), 4, 7)
    assert phases.batch_of(config, 4, first) == (0, 7)
    both = phases.skipping(config, first, 4, 6)
    assert both == (Skip(0, 4, 5),)
    assert phases.batch_of(config, 3, both) == (0, 3)
    assert phases.batch_of(config, 4, both) == (0, 9)


def test_a_second_rollback_past_the_checkpoint_of_the_first():
    """All batches taken since the older checkpoint are skipped, and no others."""
    config = two_phases()
    first = phases.skipping(config, (), 8, 12)
    both = phases.skipping(config, first, 4, 10)
    # Steps 5 to 10 took batches 4 to 7, then 12 and 13; 8 to 11 were skipped before.
    assert both == (Skip(0, 4, 10),)
    assert taken(config, both)[:6] == [(0, b) for b in (0, 1, 2, 3, 14, 15)]


def test_skips_of_a_later_phase_are_kept():
    config = two_phases()
    first = phases.skipping(config, (), 16, 22)
    both = phases.skipping(config, first, 16, 18)
    assert both == (Skip(0, 16, 6), Skip(1, 0, 2))


def test_resume_from_before_a_rollback_takes_the_same_batches():
    """Resumes from step 4 with the skips of rollbacks to steps 8 and 14."""
    config = two_phases()
    first = phases.skipping(config, (), 8, 12)
    both = phases.skipping(config, first, 14, 15)
    assert taken(config, both)[:8] == taken(config, ())[:8]
    assert taken(config, both)[8:14] == taken(config, first)[8:14]
    assert taken(config, both)[14] == (0, 19)


@pytest.mark.parametrize("first_step", [0, 3, 9, 19, 21])
def test_runs_of_batches_equal_batch_of_each_step(first_step):
    config = two_phases()
    skips = (Skip(0, 2, 1), Skip(0, 9, 4), Skip(1, 3, 2))
    runs = list(phases.runs_of_batches(config, first_step, skips))
    found = [
        (phase_index, first_batch + i)
        for phase_index, first_batch, num_batches in runs
        for i in range(num_batches)
    ]
    assert found == taken(config, skips)[first_step:]
    assert all(a[0] != b[0] or a[1] + a[2] < b[1] for a, b in itertools.pairwise(runs))
