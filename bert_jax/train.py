"""Pretrains BERT on the text that a config file names.

    python -m bert_jax.train --config=configs/X.py [--workdir=DIR]
        [--config.KEY=VALUE ...]

Resumes from the newest checkpoint in the workdir, if there is one. Ctrl-C and SIGTERM
save a checkpoint and stop the run.
"""

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
from absl import flags

from bert_jax import cli
from bert_jax.checkpoint import best, integrity
from bert_jax.checkpoint import workdir as workdir_lib
from bert_jax.checkpoint.manager import Checkpoints
from bert_jax.config import ExperimentConfig
from bert_jax.data.corpus import build
from bert_jax.data.corpus import corpus as corpus_lib
from bert_jax.data.tokenizers import tokenizers
from bert_jax.distributed import devices, multihost, preemption
from bert_jax.distributed import mesh as mesh_lib
from bert_jax.errors import DivergedError, Interrupted
from bert_jax.loading import initialize
from bert_jax.model import parameters
from bert_jax.monitoring import report, throughput, writer
from bert_jax.monitoring.goodput import Startup
from bert_jax.monitoring.monitor import Monitor
from bert_jax.phases import Position, phase_of
from bert_jax.training import compilation, nonfinite, optimizer, rollbacks
from bert_jax.training import step as step_lib
from bert_jax.training.compilation import CompiledSteps
from bert_jax.training.evaluation import HeldOut
from bert_jax.training.input import training_batches
from bert_jax.training.replay import Replay
from bert_jax.training.step import TrainState


def train(config: ExperimentConfig, workdir: str) -> TrainState:
    """Trains to the last step, from the newest checkpoint in the workdir or step 0.

    Returns:
      The state after the last step.
    """
    startup = Startup()
    with Monitor(startup) as monitor:
        # ---- Inputs: checked before anything is written.
        mesh, corpus, weights = open_inputs(config, workdir, monitor)

        # ---- State: initialized, or restored from the newest checkpoint.
        with monitor.activity("initializing"):
            first_step = lock_workdir(workdir, config)
            tx, schedule = optimizer.make_optimizer(config)
            graphdef, init = step_lib.init_state(config, tx)
            ranking = best.read(workdir, config, first_step)
            checkpoints = Checkpoints(workdir, config.checkpoint, ranking)
            if first_step:
                position = resumed_position(workdir, checkpoints, first_step, corpus)
                state = checkpoints.restore(first_step, jax.eval_shape(init), mesh)
            else:
                position = Position(corpus.sha256)
                state = initial_state(init, weights)
            begin_workdir(workdir, config, first_step)
            print(describe(config, mesh, corpus, state, workdir, first_step))
            print_notes(config, weights)
            del weights  # as large as the parameters

        # ---- Steps: compiled while the first batch is read, taken in `take_steps`.
        train_step = step_lib.make_train_step(config, graphdef, tx, schedule)
        compiled = CompiledSteps(config, compilation.jit(train_step), state, mesh)
        if first_step < config.num_steps:
            compiled.start(phase_of(config, first_step)[0])
        run = Run(
            config=config,
            workdir=workdir,
            mesh=mesh,
            corpus=corpus,
            checkpoints=checkpoints,
            ranking=ranking,
            compiled=compiled,
            replay=Replay(config, train_step),
            held_out=HeldOut(config, corpus, mesh, graphdef),
            monitor=monitor,
            began=startup.began,
        )
        preemption.save_on_signals()
        state = train_with_rollbacks(run, state, first_step, position)

        # ---- End: the last checkpoint is verified, and the results are summarized.
        preemption.restore_ctrl_c()
        with monitor.activity("ending"):
            checkpoints.close()
            multihost.agree("end", lambda: finish(run))
        return state


@dataclasses.dataclass(frozen=True)
class Run:
    """The parts of a run that its steps use.

    Attributes:
      began: start of the process, in seconds since 1970.
    """

    config: ExperimentConfig
    workdir: str
    mesh: jax.sharding.Mesh
    corpus: corpus_lib.Corpus
    checkpoints: Checkpoints
    ranking: best.Ranking
    compiled: CompiledSteps
    replay: Replay
    held_out: HeldOut
    monitor: Monitor
    began: float


# ---------------------------------------------------------------------------- steps


def train_with_rollbacks(
    run: Run, state: TrainState, first_step: int, position: Position
) -> TrainState:
    """Takes the remaining steps, rolling a diverged run back as config.guard allows.

    Args:
      run: the parts of the run.
      state: the state after `first_step` steps; it is donated.
      first_step: number of completed steps.
      position: the position in the data.

    Raises:
      Interrupted: when the run was interrupted, and a checkpoint is saved.
      DivergedError: when too many steps are not finite; the state is not saved.
      ConfigError: when the disk is full.
      CorruptError: when a replay detects a faulty chip.
    """
    like = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), state
    )
    started = run.began
    while True:
        try:
            return take_steps(run, state, first_step, position, started)
        except DivergedError as error:
            with run.monitor.activity("rolling back"):
                first_step, position = rollbacks.roll_back(
                    run.config, run.workdir, run.checkpoints, position, error
                )
        # Restore outside of `except`: the traceback holds the state that diverged.
        started = time.time()
        state = run.checkpoints.restore(first_step, like, run.mesh)


def take_steps(
    run: Run, state: TrainState, first_step: int, position: Position, started: float
) -> TrainState:
    """The training loop: takes all steps after `first_step`."""
    config, monitor, checkpoints = run.config, run.monitor, run.checkpoints
    open_log(run, first_step, position, started)
    run.ranking.drop_after(first_step)
    if first_step and preemption.interrupted():  # a new run takes a step first
        raise Interrupted(f"step {first_step:,} is saved in {run.workdir}")
    evaluate_if_missing(run, state, first_step)
    batches = training_batches(run.corpus, config, run.mesh, first_step, position.skips)
    with finishing_saves(run):
        try:
            for step, phase_index, batch in monitor.timed(batches):
                train_step = compiled_step(run, phase_index)
                if run.replay.is_due(step):
                    with monitor.activity("replaying"):
                        run.replay.check(step, state, batch)
                state, metrics = train_step(state, batch)
                monitor.step(step, phase_index, metrics)
                checkpoints.check_for_errors()
                is_last = step == config.num_steps
                if preemption.interrupted() and not is_last:
                    save(run, step, state, position)  # there may be only seconds left
                    raise Interrupted(f"step {step:,} is saved in {run.workdir}")
                is_best = False
                if run.held_out.is_due(step):
                    is_best = evaluate(run, step, phase_index, state)
                if is_last or is_best or is_time_to_save(run, step):
                    save(run, step, state, position)
            monitor.flush()
        except DivergedError as error:
            monitor.log_time(error.step)  # otherwise it would count as not running
            reason = nonfinite.diagnose(state.params, run.workdir)
            raise error.because(reason) from None
    return state


def open_log(run: Run, first_step: int, position: Position, started: float) -> None:
    """Opens the log of the steps after `first_step`."""
    config = run.config
    guard = nonfinite.Guard(
        config,
        run.corpus,
        position,
        first_step,
        run.workdir if multihost.is_first() else None,
        run.monitor.print,
    )
    run.monitor.open_log(
        run.workdir,
        first_step,
        config.num_steps,
        config.log_every_steps,
        phase_of(config, max(first_step - 1, 0))[0],
        throughput.Throughput(config),
        report.format_steps,
        guard.check,
        started,
    )


@contextlib.contextmanager
def finishing_saves(run: Run) -> Iterator[None]:
    """Waits for the save in progress, also after an error if the save can complete."""
    try:
        yield
    except DivergedError:
        raise
    except Exception as error:
        # A save cannot complete if another process is lost.
        if not multihost.may_be_lost_peer(error):
            with contextlib.suppress(Exception):  # report the first error
                wait_for_save(run)
        raise
    wait_for_save(run)


def wait_for_save(run: Run) -> None:
    with run.monitor.activity("saving"):
        run.checkpoints.wait()


def compiled_step(run: Run, phase_index: int) -> Callable[..., Any]:
    """Returns the compiled step of a phase, waiting for its compilation if needed."""
    if run.compiled.is_ready(phase_index):
        return run.compiled.get(phase_index)
    with run.monitor.activity("compiling"):
        return run.compiled.get(phase_index)


def evaluate_if_missing(run: Run, state: TrainState, step: int) -> None:
    """Evaluates a resumed state whose evaluation is due but not logged."""
    if not step or not run.held_out.is_due(step):
        return
    lines = writer.read(run.workdir)
    is_done = any(x["step"] == step and writer.HELD_OUT_LOSS in x for x in lines)
    if not multihost.from_process_0(is_done):
        evaluate(run, step, phase_of(run.config, step - 1)[0], state)


def evaluate(run: Run, step: int, phase_index: int, state: TrainState) -> bool:
    """Logs the held-out metrics; returns whether keep_best preserves this state."""
    with run.monitor.activity("evaluating"):
        line = run.held_out.evaluate(state, phase_index)
    run.ranking.add(step, phase_index, line[writer.HELD_OUT_LOSS])
    run.monitor.log(step, line, f"held out: {report.format_held_out(line)}")
    if not run.config.checkpoint.keep_best:
        return False
    return multihost.from_process_0(run.ranking.is_best(step, run.checkpoints.steps()))


def is_time_to_save(run: Run, step: int) -> bool:
    """Returns whether config.checkpoint saves the state after `step` steps.

    every_minutes is checked only at log lines, because all processes have to agree.
    """
    checkpoint = run.config.checkpoint
    if step % checkpoint.every_steps == 0:
        return True
    if not checkpoint.every_minutes or step % run.config.log_every_steps:
        return False
    minutes = run.checkpoints.seconds_since_save() / 60
    return multihost.from_process_0(minutes >= checkpoint.every_minutes)


def save(run: Run, step: int, state: TrainState, position: Position) -> None:
    """Writes the log lines so far, and starts to save a state that is finite."""
    run.monitor.flush()  # raises if the steps since the last line diverged
    nonfinite.check_finite(step, state)
    with run.monitor.activity("saving"):  # waits for the previous save
        run.checkpoints.save(step, state, run.config, position)


def finish(run: Run) -> str:
    """Verifies the last checkpoint, plots the curves and prints a summary."""
    remedy = "rerun the same command to resume from step {}"
    integrity.check(run.workdir, run.config.num_steps, remedy)
    lines = writer.read(run.workdir)
    report.plot_curves(run.workdir, lines, run.held_out.unigram_entropy)
    summary = report.summary(
        run.workdir,
        run.config.num_steps,
        time.time() - run.began,
        lines,
        run.held_out.unigram_entropy,
        run.held_out.next_sentence_majority,
        multihost.num_processes(),
    )
    print(summary)
    return ""


# --------------------------------------------------------------------------- inputs


def open_inputs(
    config: ExperimentConfig, workdir: str, monitor: Monitor
) -> tuple[jax.sharding.Mesh, corpus_lib.Corpus, initialize.Weights | None]:
    """Opens the devices and the corpus, and sets the mesh.

    Returns:
      The mesh, the corpus, and the weights of config.init_from if it is used.

    Raises:
      ConfigError: when the config, the workdir or an input is invalid. Nothing is
        written before, except that a small corpus is prepared last.
    """
    cli.local_directory("workdir", workdir)
    with monitor.activity("opening devices"):
        devices.open_devices()
        compilation.enable_cache(config.compilation_cache_dir)
        mesh = mesh_lib.make_mesh(config.mesh)
        mesh_lib.check_mesh(config, mesh)
        workdir_lib.check_config(workdir, config)
        is_begun = bool(integrity.steps(workdir))
        multihost.check_same(
            "begun",
            str(is_begun),
            f"--workdir={workdir} is not the same directory on all hosts; use a"
            " directory that all hosts share",
        )
        jax.set_mesh(mesh)
    # Unbounded: preparing a large corpus takes hours, and uses no device.
    with monitor.activity("opening the corpus", is_bounded=False):
        corpus, weights = open_corpus(config, bool(config.init_from) and not is_begun)
    return mesh, corpus, weights


def open_corpus(
    config: ExperimentConfig, is_initialized: bool
) -> tuple[corpus_lib.Corpus, initialize.Weights | None]:
    """Opens the corpus, and reads the weights of config.init_from if `is_initialized`.

    With a given vocabulary, the weights are read first, so that an error in them is
    reported before a corpus is prepared.
    """
    if not is_initialized:
        return find_corpus(config), None
    source = initialize.open_source(config)
    if config.tokenizer.vocab_file:
        tokenizer = tokenizers.load(config.tokenizer)
        weights = initialize.read(source, config, tokenizer)
        return find_corpus(config), weights
    corpus = find_corpus(config)
    return corpus, initialize.read(source, config, corpus.tokenizer)


def find_corpus(config: ExperimentConfig) -> corpus_lib.Corpus:
    """Opens the corpus, the same one in every process; process 0 may prepare it."""

    def find() -> corpus_lib.Corpus:
        if multihost.is_first():
            return build.find_corpus(config)
        multihost.wait_for(lambda: corpus_lib.exists(config.data.corpus_dir))
        return corpus_lib.read(config)

    corpus = multihost.first_then_others("corpus", find)
    multihost.check_same(
        "corpus digest",
        corpus.sha256,
        f"config.data.corpus_dir={config.data.corpus_dir!r} holds different corpora on"
        " different hosts; use a directory that all hosts share",
    )
    return corpus


# ---------------------------------------------------------------------------- state


def lock_workdir(workdir: str, config: ExperimentConfig) -> int:
    """Creates and locks the workdir; returns the step of the newest valid checkpoint.

    Returns:
      The number of completed steps, 0 for a new run.

    Raises:
      ConfigError: when another process uses the workdir, or another run was started in
        it since `open_inputs`.
      CorruptError: when there are checkpoints and all are corrupt.
    """
    multihost.make_shared("workdir", workdir)

    def lock() -> str:
        workdir_lib.lock(workdir)
        workdir_lib.check_config(workdir, config)
        return str(integrity.recover(workdir))

    return int(multihost.agree("first step", lock))


def resumed_position(
    workdir: str, checkpoints: Checkpoints, step: int, corpus: corpus_lib.Corpus
) -> Position:
    """Returns the position in the data at which to resume from a checkpoint.

    Raises:
      ConfigError: when the checkpoint was trained on another corpus.
    """
    position = checkpoints.position(step, corpus.sha256)
    return rollbacks.resumed(workdir, step, position)


def initial_state(
    init: Callable[[], TrainState], weights: initialize.Weights | None
) -> TrainState:
    """Returns the state of step 0, with random weights or those of another model."""
    state = init()
    if weights is None:
        return state
    params = parameters.place(state.params, weights.arrays)
    return dataclasses.replace(state, params=params)


def begin_workdir(workdir: str, config: ExperimentConfig, first_step: int) -> None:
    """Writes the config, and removes the rollback record before step 0."""
    if multihost.is_first():
        if not first_step:
            rollbacks.clear(workdir)
        workdir_lib.write_config(workdir, config)


def describe(
    config: ExperimentConfig,
    mesh: jax.sharding.Mesh,
    corpus: corpus_lib.Corpus,
    state: TrainState,
    workdir: str,
    first_step: int,
) -> str:
    """Returns lines that describe the model, the devices, the data and the phases."""
    model = config.model
    num_parameters = sum(x.size for x in jax.tree.leaves(state.params))
    axes = " x ".join(f"{axis} {mesh.shape[axis]}" for axis in mesh_lib.AXES)
    tokens = sum(shard.num_tokens for shard in corpus.shards["train"])
    phases = ", ".join(
        f"{phase.num_steps:,} steps of {phase.global_batch_size:,} x"
        f" {phase.sequence_length}"
        for phase in config.phases
    )
    num_processes = jax.process_count()
    processes = f" in {num_processes} processes" if num_processes > 1 else ""
    start = "from random weights"
    if first_step == config.num_steps:
        start = "already complete"
    elif first_step:
        start = f"resuming at step {first_step:,}"
    elif config.init_from:
        start = f"from the weights in {config.init_from} with a new optimizer"
    return "\n".join(
        [
            f"model:  {num_parameters:,} parameters, {model.num_hidden_layers} layers"
            f" of {model.hidden_size}, {step_lib.compute_dtype(config.compute_dtype)}",
            f"device: {jax.device_count()} x {jax.devices()[0].device_kind}{processes},"
            f" mesh {axes}",
            f"data:   {tokens:,} tokens in {config.data.corpus_dir}",
            f"train:  {phases} tokens, {start}, workdir {workdir}",
        ]
    )


def print_notes(config: ExperimentConfig, weights: initialize.Weights | None) -> None:
    """Prints warnings about the schedule and notes about the initial weights."""
    notes = weights.notes if weights else ()
    for note in (*optimizer.schedule_notes(config), *notes):
        print(f"        {note}", flush=True)


def main() -> None:
    config = cli.load_config(_CONFIG)
    workdir = _WORKDIR.value
    if workdir is None:
        workdir = f"runs/{cli.config_name(_CONFIG)}"
    multihost.join()
    preemption.exit_on_signals()
    with multihost.exit_on_error():
        train(config, workdir)


if __name__ == "__main__":
    _CONFIG = cli.define_config()
    _WORKDIR = flags.DEFINE_string(
        "workdir", None, "directory of the run; default runs/NAME-OF-CONFIG"
    )
    cli.run_and_leave(main, __doc__)
