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
KILL_AT = os.environ.get("KILL_AT", "")
HANG_AT = os.environ.get("HANG_AT", "")
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


def send_signal() -> None:
    step_to_kill, _, name = KILL_AT.partition(":")
    step_to_kill, _, times = step_to_kill.partition("#")
    left = [int(times or 1)]
    real = Monitor.step

    def kill_and_hang(*_, **__) -> None:
        os.kill(os.getpid(), getattr(signal, name))
        time.sleep(1e6)

    def take(self, step, *given) -> None:
        real(self, step, *given)
        if step == int(step_to_kill):
            left[0] -= 1
            if not left[0]:
                os.kill(os.getpid(), getattr(signal, name))
                time.sleep(NOTICE_SECS)

    if step_to_kill.isdigit():
        Monitor.step = take
    else:
        mock.patch(step_to_kill, kill_and_hang).start()


def fail() -> None:
    real = Monitor.step

    def take(self, step, *given) -> None:
        real(self, step, *given)
        if step == int(os.environ["FAIL_AT"]):
            raise KeyError("injected fault")

    Monitor.step = take


def hang() -> None:
    real = Monitor.step
    monitor_lib.Watchdog = functools.partial(stopping.Watchdog, patience_secs=4.0)

    def wait_forever(*_, **__) -> None:
        stopping.LONG_SECS = 8.0  # set late, because a start may take longer
        time.sleep(1e6)

    def take(self, step, *given) -> None:
        real(self, step, *given)
        if step == int(HANG_AT):
            wait_forever()

    if HANG_AT.isdigit():
        Monitor.step = take
    else:
        mock.patch(HANG_AT, wait_forever).start()


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


if POISON:
    poison_batches()
if KILL_AT:
    send_signal()
if HANG_AT:
    hang()
if os.environ.get("FAIL_AT"):
    fail()
if os.environ.get("FAIL_SAVES"):
    fail_saves()
if os.environ.get("COMPUTE_WRONG"):
    compute_wrong()
if os.environ.get("CORRUPT_CHECKPOINT"):
    corrupt_checkpoint()
if os.environ.get("COMPILE_FOREVER"):
    compile_forever()
runpy.run_module("bert_jax.train", run_name="__main__", alter_sys=True)
