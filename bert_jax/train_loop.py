"""From batch to batch: a step, its log line, held-out text, a checkpoint.

Entered by train.py with everything open; the step itself is in steps.py.
"""

import dataclasses
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax

from bert_jax import (
    checkpoint_files,
    goodput,
    guard,
    hosts,
    metrics,
    report,
    sharding,
    step_log,
    steps,
)
from bert_jax.checkpoint import Checkpoints, Position
from bert_jax.compiled_steps import CompiledSteps
from bert_jax.config import ExperimentConfig
from bert_jax.data import corpus as corpus_lib
from bert_jax.data import pipeline
from bert_jax.held_out import HeldOut
from bert_jax.position import Skips, batch_of, phase_of, window
from bert_jax.replay import Replay
from bert_jax.startup import Startup
from bert_jax.watchdog import Watchdog


@dataclasses.dataclass(frozen=True)
class Run:
    """What a run has open."""

    config: ExperimentConfig
    workdir: str
    mesh: jax.sharding.Mesh
    corpus: corpus_lib.Corpus
    checkpoints: Checkpoints
    compiled: CompiledSteps
    replay: Replay
    held_out: HeldOut
    startup: Startup


def take_steps(
    run: Run, state: steps.TrainState, first_step: int, position: Position
) -> steps.TrainState:
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
      DamagedError: when a chip computes wrong.
    """
    like = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), state
    )
    began = run.startup.began
    while True:
        try:
            return Loop(run, first_step, position, began).run(state)
        except guard.DivergedError as error:
            del state
            first_step, position = roll_back(run, position, error)
            state = run.checkpoints.restore(first_step, like, run.mesh)
            began = time.time()


def roll_back(
    run: Run, position: Position, error: guard.DivergedError
) -> tuple[int, Position]:
    """Returns the step of the last checkpoint and a position without what came since.

    Raises:
      guard.DivergedError: the given one, when the config allows no more of it or there
        is no checkpoint.
    """
    run.checkpoints.wait()
    first_step = checkpoint_files.newest_step(run.workdir)
    if not first_step or position.rollbacks >= run.config.guard.max_rollbacks:
        raise error
    skips = window(run.config, first_step, error.step)
    print(
        f"{error}; back to step {first_step:,}, leaving out the"
        f" {error.step - first_step:,} batches since",
        flush=True,
    )
    return first_step, dataclasses.replace(
        position, skips=position.skips + skips, rollbacks=position.rollbacks + 1
    )


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
        self._clock = goodput.Goodput(metrics.read(workdir), first_step, began)
        self._writer = metrics.open_writer(workdir, first_step, hosts.is_first())
        self._progress = report.Progress(first_step, config.num_steps)
        self._guard = guard.Guard(
            config,
            run.corpus,
            position.skips,
            workdir if hosts.is_first() else None,
            self._progress.say,
        )
        self._log = step_log.StepLog(config, self._show, self._guard.look)
        self._watchdog = Watchdog()
        self._saved_at = time.monotonic()
        self._held_out_loss: float | None = None

    def run(self, state: steps.TrainState) -> steps.TrainState:
        """Takes all steps from the first; everything is on disk when it returns."""
        try:
            stop_if_asked_already(self._first_step, self._run.workdir)
            self._state = state
            del state
            return self._take_steps()
        except guard.DivergedError as error:
            raise error.because(
                guard.diagnosis(self._state.params, self._run.workdir)
            ) from None
        finally:
            self._watchdog.rest()
            self._progress.close()
            self._writer.close()

    def _take_steps(self) -> steps.TrainState:
        config, run = self._config, self._run
        step, last_metrics = self._first_step, {}
        for phase_index, batch in global_batches(run, step, self._position.skips):
            self._account_for_data(last_metrics)
            train_step = self._compiled(phase_index)
            if run.replay.is_due(step + 1):
                run.replay.check(step + 1, self._state, batch)
            self._state, step_metrics = train_step(self._state, batch)
            run.startup.finish("first step", step_metrics, self._progress.say)
            step += 1
            wait_for_step(self._state, last_metrics)
            last_metrics = step_metrics
            self._watchdog.saw(f"step {step:,}")
            self._log.add(step, phase_index, step_metrics)
            run.checkpoints.check_saving()
            is_last = step == config.num_steps
            is_interrupted = hosts.interrupted(step) and not is_last
            if is_interrupted:  # saved first: there may be seconds left
                self._save(step)
            if run.held_out.exists and (is_last or step % config.eval.every_steps == 0):
                self._evaluate(step, phase_index)
            if is_interrupted:
                self._finish_saving()
                raise hosts.Interrupted(f"step {step:,} is saved in {run.workdir}")
            if is_last or self._is_time_to_save(step):
                self._save(step)
            self._clock.enter("data")
        self._log.flush()
        self._finish_saving()
        return self._state

    def _compiled(self, phase_index: int) -> Callable[..., Any]:
        """Returns the step of a phase, waiting for its compilation where that lasts."""
        compiled, startup = self._run.compiled, self._run.startup
        startup.mark("data")
        if compiled.is_ready(phase_index):
            train_step = compiled.of(phase_index)
        else:
            self._watchdog.rest()  # it takes its time
            self._clock.enter("compiling")
            train_step = compiled.of(phase_index)
            self._watchdog.saw("compilation")
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
        self._progress.update(step, line)

    def _evaluate(self, step: int, phase_index: int) -> None:
        self._log.flush()
        self._watchdog.rest()
        self._clock.enter("evaluating")
        line = self._run.held_out.evaluate(self._state, phase_index)
        self._held_out_loss = self._run.held_out.loss(line)
        self._watchdog.saw("evaluation")
        self._writer.write(step, line | self._clock.line())
        words = report.held_out_words(line)
        self._progress.say(f"step {step:,} held out: {words}")
        self._log.stop_clock()

    def _is_time_to_save(self, step: int) -> bool:
        """By steps; by minutes where a line is due, so that lines are as without."""
        checkpoint = self._config.checkpoint
        if step % checkpoint.every_steps == 0:
            return True
        if not checkpoint.every_minutes or not self._log.is_full:
            return False
        seconds = time.monotonic() - self._saved_at
        return hosts.first_says(seconds >= 60 * checkpoint.every_minutes)

    def _save(self, step: int) -> None:
        # What a resumed run will not see again; and a bad state ends the run here.
        self._log.flush()
        self._clock.enter("saving")
        self._writer.flush()
        self._run.checkpoints.save(
            step, self._state, self._config, self._position, self._held_out_loss
        )
        self._saved_at, self._held_out_loss = time.monotonic(), None

    def _finish_saving(self) -> None:
        self._watchdog.rest()
        self._clock.enter("saving")
        self._run.checkpoints.wait()


def wait_for_step(state: steps.TrainState, last_metrics: dict[str, jax.Array]) -> None:
    """Waits so that one step is ahead of the host, and the watchdog sees those done.

    Not on a CPU, which waits for the step itself: simulated devices deadlock in
    collectives when steps queue up (seen with jax 0.10 and 0.12), and it gains nothing
    from running ahead.
    """
    jax.block_until_ready(state if jax.default_backend() == "cpu" else last_metrics)


def stop_if_asked_already(first_step: int, workdir: str) -> None:
    """Raises Interrupted when SIGTERM came before the first step of a resumed run.

    The notice then waits to be asked of step 1, which a resumed run never comes to.
    """
    if first_step:
        if hosts.interrupted(1):
            raise hosts.Interrupted(f"step {first_step:,} is saved in {workdir}")
        hosts.interrupted(first_step)


def global_batches(
    run: Run, first_step: int, skips: Skips
) -> Iterator[tuple[int, steps.Batch]]:
    """Yields (phase, batch on the devices) of every step from `first_step` to the last.

    The next batch is on its way to the devices while a step runs.
    """
    config, mesh = run.config, run.mesh
    host, num_hosts = sharding.host_part(mesh, jax.process_index())

    def placed() -> Iterator[tuple[int, steps.Batch]]:
        step = first_step
        while step < config.num_steps:
            phase_index, first_batch = batch_of(config, step, skips)
            _, done = phase_of(config, step)
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
            for _ in range(done, config.phases[phase_index].num_steps):
                yield phase_index, sharding.place_batch(next(batches), mesh)
                step += 1

    ahead = placed()
    current = next(ahead, None)
    while current is not None:
        following = next(ahead, None)
        yield current
        current = following
