"""From batch to batch: a step, its log line, held-out text, a checkpoint.

Entered by train.py with everything open; the step itself is in step.py.
"""

import contextlib
import dataclasses
import itertools
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax

from bert_jax import errors
from bert_jax.checkpoint.best import Ranking
from bert_jax.checkpoint.manager import Checkpoints
from bert_jax.config import ExperimentConfig
from bert_jax.data.batches import pipeline
from bert_jax.data.corpus import corpus
from bert_jax.distributed import mesh as mesh_lib
from bert_jax.distributed import multihost, preemption, sharding
from bert_jax.distributed.watchdog import Watchdog
from bert_jax.errors import StorageError
from bert_jax.monitoring import goodput, report, step_log, throughput, writer
from bert_jax.monitoring.goodput import Startup
from bert_jax.phases import Position, Skips, phase_of, runs_of_batches, skipping
from bert_jax.training import nonfinite, rollbacks
from bert_jax.training import step as step_lib
from bert_jax.training.compilation import CompiledSteps
from bert_jax.training.evaluation import HeldOut
from bert_jax.training.replay import Replay


@dataclasses.dataclass(frozen=True)
class Run:
    """What a run has open."""

    config: ExperimentConfig
    workdir: str
    mesh: jax.sharding.Mesh
    corpus: corpus.Corpus
    checkpoints: Checkpoints
    ranking: Ranking
    compiled: CompiledSteps
    replay: Replay
    held_out: HeldOut
    startup: Startup
    watchdog: Watchdog


def take_steps(
    run: Run, state: step_lib.TrainState, first_step: int, position: Position
) -> step_lib.TrainState:
    """Takes all steps that are left, rolling back where the config says so.

    Args:
      run: what is open.
      state: of `first_step`; it is donated.
      first_step: steps that are done.
      position: in the data.

    Raises:
      hosts.Interrupted: when the run was asked to stop, and is saved.
      guard.DivergedError: when too many steps were not finite; nothing more is saved.
      ConfigError: when a disk is full.
      CorruptError: when a chip computes wrong.
    """
    like = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), state
    )
    began = run.startup.began
    while True:
        try:
            return Loop(run, first_step, position, began).run(state)
        except errors.DivergedError as error:
            first_step, position = roll_back(run, position, error)
        # Not before: until here the error holds on to the state that diverged.
        state = run.checkpoints.restore(first_step, like, run.mesh)
        began = time.time()


def roll_back(
    run: Run, position: Position, error: errors.DivergedError
) -> tuple[int, Position]:
    """Returns the step of the last valid checkpoint and a position that skips ahead.

    The position skips the batches of all steps since that checkpoint. It is recorded in
    the workdir before any corrupt checkpoint is moved, so that the run resumes alike
    whenever it is killed.

    Raises:
      guard.DivergedError: the given one, when config.guard.max_rollbacks is reached or
        there is no checkpoint.
    """
    run.watchdog.begin("a rollback")
    run.checkpoints.wait()
    if position.rollbacks >= run.config.guard.max_rollbacks:
        raise error

    def after(first_step: int) -> Position:
        return dataclasses.replace(
            position,
            skips=skipping(run.config, position.skips, first_step, error.step),
            rollbacks=position.rollbacks + 1,
        )

    first_step = run.checkpoints.recover(
        f"rollback {position.rollbacks + 1}",
        lambda step: rollbacks.write(run.workdir, step, after(step)),
    )
    if not first_step:
        raise error
    print(
        f"{error}; back to step {first_step:,}, skipping the batches of the"
        f" {error.step - first_step:,} steps since",
        flush=True,
    )
    log = run.checkpoints.position(first_step, position.corpus_sha256).log
    return first_step, dataclasses.replace(after(first_step), log=log)


class Loop:
    """Takes steps until the end of the run or until it is asked to stop."""

    def __init__(self, run: Run, first_step: int, position: Position, began: float):
        """Opens what it writes; lines of steps after `first_step` are dropped.

        Args:
          run: what is open.
          first_step: steps that are done.
          position: in the data.
          began: when the time that is not yet accounted for began, in seconds since
            1970.
        """
        config, workdir = run.config, run.workdir
        self._run, self._config, self._first_step = run, config, first_step
        self._position = position
        self._clock = goodput.Goodput(writer.read(workdir), first_step, began)
        self._writer = writer.open_writer(
            workdir, first_step, len(position.log), multihost.is_first()
        )
        self._progress = report.Progress(first_step, config.num_steps)
        self._guard = nonfinite.Guard(
            config,
            run.corpus,
            position,
            first_step,
            workdir if multihost.is_first() else None,
            self._progress.say,
        )
        self._log = step_log.StepLog(
            config.log_every_steps,
            throughput.Rates(config),
            self._show,
            self._guard.look,
            first_step,
            phase_of(config, max(first_step - 1, 0))[0],
            position.log,
        )
        self._watchdog = run.watchdog
        self._saved_at = time.monotonic()
        run.ranking.drop_after(first_step)

    def run(self, state: step_lib.TrainState) -> step_lib.TrainState:
        """Takes all steps from the first; everything is on disk when it returns."""
        self._state = state
        del state
        try:
            self._stop_if_asked_already()
            self._catch_up()
            self._take_steps()
            self._writer.close()
            return self._state
        except errors.DivergedError as error:
            # So that the time until here is not taken for time that it did not run.
            self._writer.write(error.step, self._clock.line())
            reason = nonfinite.diagnosis(self._state.params, self._run.workdir)
            raise error.because(reason) from None
        except Exception as error:
            # No save ends where another process is gone.
            if not multihost.may_be_lost_peer(error):
                with contextlib.suppress(Exception):  # the first error is to be told
                    self._finish_saving()
            raise
        finally:
            self._progress.close()
            with contextlib.suppress(OSError, StorageError):
                self._writer.close()
            del self._state  # as large as the device's memory, maybe

    def _stop_if_asked_already(self) -> None:
        """Raises Interrupted when SIGTERM came before the first step of this call.

        There is nothing new to save then, but in a fresh run: that takes a step first.
        """
        if self._first_step and preemption.interrupted():
            raise errors.Interrupted(
                f"step {self._first_step:,} is saved in {self._run.workdir}"
            )

    def _catch_up(self) -> None:
        """Evaluates what an interrupted call before this one had no time for."""
        step = self._first_step
        if not step or not self._is_time_to_evaluate(step):
            return
        lines = writer.read(self._run.workdir)
        is_done = any(x["step"] == step and "eval_masked_lm_loss" in x for x in lines)
        if not multihost.from_process_0(is_done):
            self._evaluate(step, phase_of(self._config, step - 1)[0])

    def _take_steps(self) -> None:
        config, run = self._config, self._run
        step, last_metrics = self._first_step, {}
        for phase_index, batch in global_batches(run, step, self._position.skips):
            self._account_for_data(last_metrics)
            train_step = self._compiled(phase_index)
            if run.replay.is_due(step + 1):
                self._replay(step + 1, batch)
            self._state, step_metrics = train_step(self._state, batch)
            run.startup.finish("first step", step_metrics, self._progress.say)
            step += 1
            wait_for_step(self._state, last_metrics)
            last_metrics = step_metrics
            self._watchdog.heartbeat(f"step {step:,}")
            self._progress.took(step)
            self._log.add(step, phase_index, step_metrics)
            run.checkpoints.check_saving()
            is_last = step == config.num_steps
            if preemption.interrupted() and not is_last:
                self._save(step)  # there may be seconds left
                self._finish_saving()
                raise errors.Interrupted(f"step {step:,} is saved in {run.workdir}")
            is_evaluated = self._is_time_to_evaluate(step)
            if is_evaluated:
                self._evaluate(step, phase_index)
            is_best = is_evaluated and self._is_best(step)
            if is_last or is_best or self._is_time_to_save(step):
                self._save(step)
            self._clock.enter("data")
        self._log.flush()
        self._finish_saving()

    def _is_time_to_evaluate(self, step: int) -> bool:
        is_due = step % self._config.eval.every_steps == 0
        return self._run.held_out.exists and (is_due or step == self._config.num_steps)

    def _replay(self, step: int, batch: step_lib.Batch) -> None:
        self._watchdog.begin("a replay")  # the first time it compiles
        self._clock.enter("replaying")
        self._run.replay.check(step, self._state, batch)
        self._watchdog.heartbeat("a replay")
        self._clock.enter("steps")

    def _compiled(self, phase_index: int) -> Callable[..., Any]:
        """Returns the step of a phase, waiting for its compilation where that lasts."""
        compiled, startup = self._run.compiled, self._run.startup
        startup.mark("data")
        if compiled.is_ready(phase_index):
            train_step = compiled.of(phase_index)
        else:
            self._watchdog.begin("compilation")
            self._clock.enter("compiling")
            train_step = compiled.of(phase_index)
            self._watchdog.heartbeat("compilation")
        startup.mark("compile")
        self._clock.enter("steps")
        return train_step

    def _account_for_data(self, last_metrics: dict[str, jax.Array]) -> None:
        # A batch that was made while devices were busy cost nothing.
        arrays: Any = last_metrics.values()
        if not all(array.is_ready() for array in arrays):
            self._clock.leave_as("steps")

    def _show(self, step: int, line: dict[str, float]) -> None:
        self._writer.write(step, line | self._clock.line())
        self._progress.update(step, report.step_words(line))

    def _evaluate(self, step: int, phase_index: int) -> None:
        self._log.flush()
        self._watchdog.begin("evaluation")
        self._clock.enter("evaluating")
        line = self._run.held_out.evaluate(self._state, phase_index)
        self._run.ranking.add(step, phase_index, line[writer.HELD_OUT_LOSS])
        self._watchdog.heartbeat("evaluation")
        self._writer.write(step, line | self._clock.line())
        words = report.held_out_words(line)
        self._progress.say(f"step {step:,} held out: {words}")
        self._log.stop_clock()

    def _is_best(self, step: int) -> bool:
        """Returns whether keep_best preserves the state of an evaluation just made."""
        if not self._config.checkpoint.keep_best:
            return False
        run = self._run
        return multihost.from_process_0(
            run.ranking.is_best(step, run.checkpoints.steps())
        )

    def _is_time_to_save(self, step: int) -> bool:
        """By steps; by minutes where a line is due, since all processes have to ask."""
        checkpoint = self._config.checkpoint
        if step % checkpoint.every_steps == 0:
            return True
        if not checkpoint.every_minutes or not self._log.is_full:
            return False
        seconds = time.monotonic() - self._saved_at
        return multihost.from_process_0(seconds >= 60 * checkpoint.every_minutes)

    def _save(self, step: int) -> None:
        log = self._log.unwritten()  # and a bad state ends the run here
        nonfinite.check_finite(step, self._state)
        self._watchdog.begin("a save")  # it waits for the one before
        self._clock.enter("saving")
        self._writer.flush()
        position = dataclasses.replace(self._position, log=log)
        self._run.checkpoints.save(step, self._state, self._config, position)
        self._saved_at = time.monotonic()
        self._watchdog.heartbeat("a save")

    def _finish_saving(self) -> None:
        self._watchdog.begin("the end of a save")
        self._clock.enter("saving")
        self._run.checkpoints.wait()


def wait_for_step(
    state: step_lib.TrainState, last_metrics: dict[str, jax.Array]
) -> None:
    """Waits so that one step is ahead of the host, and the watchdog sees those done.

    Not on a CPU, which waits for the step itself: simulated devices deadlock in
    collectives when steps queue up (seen with jax 0.10 and 0.12), and it gains nothing
    from running ahead.
    """
    jax.block_until_ready(state if jax.default_backend() == "cpu" else last_metrics)


def global_batches(
    run: Run, first_step: int, skips: Skips
) -> Iterator[tuple[int, step_lib.Batch]]:
    """Yields (phase, batch on the devices) of every step from `first_step` to the last.

    The next batch is on its way to the devices while a step runs.
    """
    config, mesh = run.config, run.mesh
    host, num_hosts = mesh_lib.host_part(mesh, jax.process_index())

    def placed() -> Iterator[tuple[int, step_lib.Batch]]:
        for phase_index, first_batch, num_batches in runs_of_batches(
            config, first_step, skips
        ):
            batches = pipeline.batches(
                run.corpus,
                config,
                split="train",
                seed=config.seed,
                phase_index=phase_index,
                first_step=first_batch,
                host=host,
                num_hosts=num_hosts,
            )
            for batch in itertools.islice(batches, num_batches):
                yield phase_index, sharding.place_batch(batch, mesh)

    ahead = placed()
    current = next(ahead, None)
    while current is not None:
        following = next(ahead, None)
        yield current
        current = following
