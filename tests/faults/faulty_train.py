"""Runs bert_jax.train with a fault that environment variables select.

- POISON_BATCHES="35,36" or "35-" makes training batches of each phase not finite,
  counted from 0.
- KILL_AT="20:SIGTERM" sends this process a signal after a step. "20#3:SIGTERM" does so
  the third time that the step is taken. "bert_jax.MODULE.NAME:SIGTERM" sends it in a
  function, which then hangs.
- HANG_AT="20" hangs after a step, HANG_AT="bert_jax.MODULE.NAME" in a function. The
  limits of the watchdog are a few seconds.
- FAIL_AT="21" raises a KeyError after a step.
- FAIL_SAVES=1 makes every save fail while it is written, as on a full disk.
- COMPUTE_WRONG=1 makes the second result of each replay differ, as a faulty chip does.
- CORRUPT_CHECKPOINT="40:2" flips a bit of checkpoint 40 before the second rollback.
- COMPILE_FOREVER=1 never completes the compilation of the second phase.
"""

import errno
import functools
import os
import pathlib
import runpy
import signal
import time
from collections.abc import Callable
from unittest import mock

import jax
import numpy as np

from bert_jax.checkpoint import integrity
from bert_jax.data.batches import pipeline
from bert_jax.distributed import stopping
from bert_jax.monitoring import monitor as monitor_lib
from bert_jax.monitoring.monitor import Monitor
from bert_jax.training import compilation, rollbacks, stepper
from tests.commands import flip

POISON = os.environ.get("POISON_BATCHES", "")
# A notice takes a second or two to arrive; the run stops at this step or the next.
NOTICE_SECS = 4.0


def is_poisoned(batch: int) -> bool:
    if POISON.endswith("-"):
        return batch >= int(POISON[:-1])
    return str(batch) in POISON.split(",")


def poison_batches() -> None:
    real = pipeline.batches

    def batches(corpus, config, *, split, first_step, **rest):
        made = real(corpus, config, split=split, first_step=first_step, **rest)
        for number, batch in enumerate(made, start=first_step):
            if split == "train" and is_poisoned(number):
                weights = batch["masked_lm_weights"].copy()
                weights[0, 0] = np.nan
                batch = batch | {"masked_lm_weights": weights}
            yield batch

    pipeline.batches = batches


def do_at(place: str, act: Callable[[], None], times: str = "") -> None:
    """Does something after the nth time of a step, or in place of a function."""
    real = Monitor.step
    left = [int(times or 1)]

    def take(self, step, *given) -> None:
        real(self, step, *given)
        if step == int(place):
            left[0] -= 1
            if not left[0]:
                act()

    if place.isdigit():
        Monitor.step = take
    else:
        mock.patch(place, lambda *_, **__: act()).start()


def send_signal() -> None:
    place, _, name = os.environ["KILL_AT"].partition(":")
    place, _, times = place.partition("#")

    def kill() -> None:
        os.kill(os.getpid(), getattr(signal, name))
        time.sleep(NOTICE_SECS if place.isdigit() else 1e6)

    do_at(place, kill, times)


def hang() -> None:
    monitor_lib.Watchdog = functools.partial(stopping.Watchdog, patience_secs=4.0)

    def wait_forever() -> None:
        stopping.LONG_SECS = 8.0  # set late, because a start may take longer
        time.sleep(1e6)

    do_at(os.environ["HANG_AT"], wait_forever)


def fail() -> None:
    def act() -> None:
        raise KeyError("injected fault")

    do_at(os.environ["FAIL_AT"], act)


def fail_saves() -> None:
    def seal(directory) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    integrity.seal = seal


def compute_wrong() -> None:
    """Changes the last bit of one moment in the second result of a replay."""
    real = stepper.differing_arrays

    def differing_arrays(a, b):
        leaves, tree = jax.tree.flatten(b)
        leaves[-4] = leaves[-4] * np.float32(1 + 2**-23)
        return real(a, jax.tree.unflatten(tree, leaves))

    stepper.differing_arrays = differing_arrays


def corrupt_checkpoint() -> None:
    step, number = map(int, os.environ["CORRUPT_CHECKPOINT"].split(":"))
    real = rollbacks.roll_back

    def roll_back(config, workdir, checkpoints, position, error):
        if position.rollbacks == number - 1:
            checkpoints.wait()
            directory = pathlib.Path(integrity.directory_of(workdir, step))
            path = max(directory.rglob("*"), key=lambda path: path.stat().st_size)
            flip(path)
        return real(config, workdir, checkpoints, position, error)

    rollbacks.roll_back = roll_back


def compile_forever() -> None:
    """Compiles the second phase again and again."""
    real = compilation.compile_phase

    def compile_phase(config, train_step, state, mesh, phase_index):
        while phase_index:
            new_step = compilation.jit(lambda *given: train_step(*given))
            real(config, new_step, state, mesh, phase_index)
        return real(config, train_step, state, mesh, phase_index)

    compilation.compile_phase = compile_phase


FAULTS = {
    "POISON_BATCHES": poison_batches,
    "KILL_AT": send_signal,
    "HANG_AT": hang,
    "FAIL_AT": fail,
    "FAIL_SAVES": fail_saves,
    "COMPUTE_WRONG": compute_wrong,
    "CORRUPT_CHECKPOINT": corrupt_checkpoint,
    "COMPILE_FOREVER": compile_forever,
}
for name, inject in FAULTS.items():
    if os.environ.get(name):
        inject()
runpy.run_module("bert_jax.train", run_name="__main__", alter_sys=True)
