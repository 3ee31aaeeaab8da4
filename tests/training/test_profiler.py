"""Tests of the profiler of bert_jax.training.stepper."""

import time

import jax
import jax.numpy as jnp
import pytest

from bert_jax.training.stepper import Profiler
from tests.monitoring.test_monitor import open_monitor
from tests.runs import step_secs

SLEEP_SECS = 0.02


def take(steps, workdir, first_step, last_step):
    """Takes steps, and returns the state after them."""

    @jax.jit
    def double(state, batch):
        return 2 * state + batch, {"loss": state}

    def train_step(state, batch):
        time.sleep(SLEEP_SECS)
        return double(state, batch)

    with open_monitor(workdir) as monitor:
        state = jnp.float32(first_step)
        with Profiler(steps, str(workdir), first_step, monitor) as profiler:
            for step in range(first_step + 1, last_step + 1):
                state, _ = profiler.step(step, train_step, state, jnp.float32(1))
    return float(state)


def traces(workdir):
    """Returns the traces where TensorBoard's plugin looks for them."""
    return list(workdir.glob("plugins/profile/*/*.xplane.pb"))


def test_the_trace_has_the_steps_with_their_times(tmp_path, capsys):
    straight = take((), tmp_path, 0, 6)
    assert not traces(tmp_path)
    began = time.perf_counter()
    assert take((3, 2), tmp_path, 0, 6) == straight
    elapsed = time.perf_counter() - began
    (trace,) = traces(tmp_path)
    found = step_secs(trace)
    assert list(found) == [3, 4]
    assert min(found.values()) >= SLEEP_SECS
    assert sum(found.values()) < elapsed
    assert f"{tmp_path}/plugins/profile" in capsys.readouterr().out


@pytest.mark.parametrize(("first_step", "has_trace"), [(1, True), (2, False)])
def test_a_run_that_resumes_after_the_first_step_has_no_trace(
    tmp_path, capsys, first_step, has_trace
):
    take((2, 1), tmp_path, first_step, 4)
    assert len(traces(tmp_path)) == has_trace
    note = "config.profile: no trace, because step 2 was taken before this call\n"
    assert (note in capsys.readouterr().out) == (not has_trace)


def test_a_trace_that_is_broken_off_has_the_steps_so_far(tmp_path):
    take((2, 100), tmp_path, 0, 3)
    (trace,) = traces(tmp_path)
    assert list(step_secs(trace)) == [2, 3]
