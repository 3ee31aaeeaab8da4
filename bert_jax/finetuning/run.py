"""One fine-tuning run: trains, evaluates the dev set and keeps the best parameters.

The directory of a run holds `checkpoints` (the states to resume from, deleted at the
end), `best` (the parameters with the best dev metric), metrics.jsonl and, when the run
is complete, result.json.
"""

import contextlib
import dataclasses
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from orbax.checkpoint.checkpoint_managers import LatestN

from bert_jax import clock, errors
from bert_jax import config as config_lib
from bert_jax.checkpoint import integrity
from bert_jax.checkpoint.manager import Checkpoints
from bert_jax.distributed import mesh as mesh_lib
from bert_jax.distributed import multihost, preemption, sharding
from bert_jax.errors import ConfigError, CorruptError, DivergedError
from bert_jax.finetuning import batches, results
from bert_jax.finetuning import step as tuning_step
from bert_jax.finetuning.config import FinetuneConfig
from bert_jax.finetuning.results import Result
from bert_jax.finetuning.setup import Setup
from bert_jax.model import parameters
from bert_jax.monitoring import writer
from bert_jax.monitoring.monitor import Monitor
from bert_jax.phases import Position
from bert_jax.training import rollbacks
from bert_jax.training.step import TrainState

BEST = "best"  # directory of the best parameters, in that of the run
# Checkpoints are saved at each evaluation and at an interruption. Two are kept, because
# the newest may be corrupt. Of the best parameters, one is kept.
_KEPT, _KEPT_BEST = LatestN(2), LatestN(1)


def tune(setup: Setup, learning_rate: float, seed: int, workdir: str) -> Result:
    """Starts or resumes a run, and trains to its end.

    The seed is that of the head's initial weights, the order of rows and dropout.

    Raises:
      Interrupted: when the run was interrupted and a checkpoint is saved.
    """
    if result := results.read(workdir):
        _drop_checkpoints(workdir)  # an earlier call was killed before this
        return result
    with Monitor() as monitor:
        run = _Run(setup, learning_rate, seed, workdir, monitor)
        try:
            diverged = run.take_steps()
        finally:
            with monitor.activity("ending", is_bounded=False):
                run.close()
    metrics = dict(results.best(run.history, setup.config.metric))
    best_step, history = int(metrics.pop("step", 0)), tuple(run.history)
    result = Result(learning_rate, seed, diverged, best_step, metrics, history)
    if multihost.is_first():
        results.write(workdir, result)
    multihost.barrier(f"{workdir}: end")
    _drop_checkpoints(workdir)
    if run.is_interrupted:
        raise errors.Interrupted(f"the run in {workdir} is complete")
    return result


def _drop_checkpoints(workdir: str) -> None:
    """Removes the checkpoints of a complete run; optimizer moments are most of them."""
    if multihost.is_first():
        directory = Path(workdir) / integrity.DIRECTORY
        shutil.rmtree(directory, ignore_errors=True)


def best_params(setup: Setup, result: Result, workdir: str) -> Any:
    """Restores the parameters with the best dev metric of a run onto the mesh."""
    _, params = parameters.structure(setup.build)
    directory, step = f"{workdir}/{BEST}", result.best_step
    if problems := integrity.verify(directory, step):
        raise CorruptError(
            f"{directory} is corrupt: {problems[0]}; remove {workdir} to repeat the run"
        )
    checkpoints = Checkpoints(directory)
    restored = checkpoints.restore(step, {"params": params}, setup.mesh)
    checkpoints.close()
    return restored["params"]


def dev_steps(config: FinetuneConfig, num_steps: int) -> set[int]:
    if every := config.eval_every_steps:
        return {*range(every, num_steps, every), num_steps}
    num_epochs = min(config.recipe.num_epochs, num_steps)
    return {num_steps * epoch // num_epochs for epoch in range(1, num_epochs + 1)}


class _Run:
    def __init__(
        self,
        setup: Setup,
        learning_rate: float,
        seed: int,
        workdir: str,
        monitor: Monitor,
    ):
        self._setup, self._config = setup, setup.config
        self._workdir, self._monitor = workdir, monitor
        self.is_interrupted = False
        config, recipe = setup.config, setup.config.recipe
        features = setup.datasets.train.features
        self._rows = batches.Shuffled(
            len(features),
            recipe.global_batch_size,
            seed,
            features.num_tokens() if recipe.group_by_length else None,
        )
        self._dev_steps = dev_steps(config, setup.num_steps)
        self._part = mesh_lib.host_part(setup.mesh, jax.process_index())
        self._learning_rate = jnp.float32(learning_rate)
        init_key, self._dropout_key = tuning_step.run_keys(seed)
        self._checkpoints = Checkpoints(workdir, _KEPT)
        self._step, self._state = self._restore(learning_rate, init_key)
        best = f"{workdir}/{BEST}"
        multihost.agree(f"{workdir}: best", lambda: _drop_after(best, self._step))
        self._best_weights = Checkpoints(best, _KEPT_BEST)
        monitor.open_log(
            workdir,
            self._step,
            setup.num_steps,
            config.log_every_steps,
            rates=lambda _, rate: {"examples_per_sec": rate * recipe.global_batch_size},
            format_steps=_format_steps,
            on_steps=self._check_steps,
            began=clock(),
        )
        described = config_lib.flatten(dataclasses.asdict(config)) | {
            "run.workdir": str(Path(workdir).absolute()),
            "run.learning_rate": learning_rate,
            "run.seed": seed,
        }
        monitor.open_trackers(config.trackers, workdir, described)
        # Process 0 reads it after `open_log` dropped the lines of later steps.
        self.history: list[dict[str, float]] = multihost.agree(
            f"{workdir}: history", lambda: _read_history(workdir)
        )

    def _restore(self, learning_rate: float, key: jax.Array) -> tuple[int, TrainState]:
        """Initializes the state or restores the newest one; returns its step, too."""
        setup = self._setup
        tx, _ = tuning_step.make_optimizer(
            setup.config.recipe, learning_rate, setup.num_steps
        )

        def init() -> TrainState:
            _, params = setup.build(key)
            shard = setup.config.mesh.shard_optimizer
            split = sharding.shard_over_data(params) if shard else params
            zero = jnp.zeros((), jnp.int32)
            return TrainState(zero, params, tx.init(split), zero, zero)

        step = self._checkpoints.recover(f"{self._workdir}: first step")
        if step:
            like = jax.eval_shape(jax.jit(init))
            return step, self._checkpoints.restore(step, like, setup.mesh)
        state = jax.jit(init)()
        if not setup.start.is_from_scratch:
            params = parameters.place(state.params, setup.encoder.arrays)
            state = dataclasses.replace(state, params=params)
        return 0, state

    def take_steps(self) -> str:
        """Trains to the end; returns why the run diverged, or ""."""
        try:
            if self._step in self._dev_steps:
                self._evaluate_and_save()
            setup = self._setup
            features, teacher = setup.datasets.train.features, setup.teacher
            while self._step < setup.num_steps and not self._stops_early():
                batch = features.batch(self._rows.of_step(self._step))
                self._state, step_metrics = setup.train_step(
                    self._state,
                    batches.place(batch, self._part, setup.mesh),
                    self._learning_rate,
                    self._dropout_key,
                    teacher.params if teacher else None,
                )
                self._step += 1
                self._monitor.step(self._step, 0, step_metrics)
                self.is_interrupted |= preemption.interrupted()
                if self.is_interrupted and self._step < setup.num_steps:
                    self._save()
                    raise errors.Interrupted(
                        f"step {self._step:,} is saved in {self._workdir}"
                    )
                if self._step in self._dev_steps:
                    self._evaluate_and_save()
            self._monitor.flush()
        except DivergedError as error:
            return str(error)
        return ""

    def close(self) -> None:
        """Waits for saves in progress, and closes the checkpoints."""
        with contextlib.suppress(ConfigError):  # report the first error
            self._checkpoints.close()
            self._best_weights.close()

    def _stops_early(self) -> bool:
        """Returns whether the last `early_stop_evals` evaluations did not improve."""
        patience, history = self._config.early_stop_evals, self.history
        best = results.best(history, self._config.metric)
        since = sum(line["step"] > best["step"] for line in history)
        return bool(patience) and since >= patience

    def _evaluate_and_save(self) -> None:
        """Saves and evaluates the state, unless an earlier call did.

        It saves first, because an evaluation may take minutes, and the evaluation of a
        state that cannot be saved would be lost.
        """
        if self._step not in self._checkpoints.steps():
            self._save()
        if not any(line["step"] == self._step for line in self.history):
            self._evaluate()
        best = results.best(self.history, self._config.metric)
        if best["step"] == self._step and self._step not in self._best_weights.steps():
            self._write(self._best_weights, {"params": self._state.params})

    def _evaluate(self) -> None:
        """Logs the metrics of the first dev set."""
        split = self._setup.datasets.dev[0]
        num_done, num_rows = 0, len(split.features)

        def count(num: int) -> None:
            nonlocal num_done
            num_done += num
            self._monitor.progress.tick(f"  dev set: {num_done:,} of {num_rows:,} rows")

        with self._monitor.activity("evaluating"):
            scores = self._setup.evaluate(self._state.params, split, count)
        line = {f"dev_{name}": value for name, value in scores.items()}
        text = "  ".join(f"{name} {value:.4g}" for name, value in scores.items())
        self._monitor.log(self._step, line, f"dev set: {text}")
        self._monitor.flush()
        self.history.append({"step": self._step, **scores})

    def _save(self) -> None:
        self._monitor.flush()  # raises if the steps since the last line diverged
        rollbacks.check_finite(self._step, self._state)
        self._write(self._checkpoints, self._state)

    def _write(self, checkpoints: Checkpoints, state: Any) -> None:
        position = Position(self._setup.sha256["train"])
        with self._monitor.activity("saving"):
            checkpoints.save(self._step, state, self._config, position)
            checkpoints.wait()

    def _check_steps(self, last_step: int, steps: Sequence[dict[str, Any]]) -> None:
        """Reports steps that are not finite; too many in a row raise DivergedError."""
        in_row = [int(metrics["bad_steps_in_row"]) for metrics in steps]
        if any(in_row):
            self._monitor.print(
                f"{sum(map(bool, in_row))} of the last {len(in_row)} steps up to step"
                f" {last_step:,} not finite: update skipped"
            )
        if max(in_row) >= self._config.max_bad_steps:
            raise DivergedError(
                last_step,
                f"the loss or the gradient was not finite in {max(in_row)} steps in a"
                " row; try a lower learning rate",
            )


def _format_steps(line: dict[str, float]) -> str:
    text = f"loss {line['loss']:.4f}  learning rate {line['learning_rate']:.2e}"
    if "examples_per_sec" in line:  # absent if no step was timed
        text += f"  {line['examples_per_sec']:,.0f} examples/s"
    return text


def _drop_after(directory: str, step: int) -> None:
    """Removes the best parameters of steps after the one that the run resumes from.

    There are some if the newest checkpoint was corrupt.
    """
    for later in integrity.steps(directory):
        if later > step:
            shutil.rmtree(integrity.directory_of(directory, later))


def _read_history(workdir: str) -> list[dict[str, float]]:
    """Returns the evaluations of the dev set in metrics.jsonl."""
    history = []
    for line in writer.read(workdir):
        dev = {
            name.removeprefix("dev_"): value
            for name, value in line.items()
            if name.startswith("dev_")
        }
        if dev:
            history.append({"step": line["step"], **results.without_nulls(dev)})
    return history
