"""Pretrains BERT on the text that a config file names.

    python -m bert_jax.train --config=configs/X.py [--workdir=DIR]
        [--config.KEY=VALUE ...]

Resumes from the newest checkpoint in the workdir, if there is one. Ctrl-C and SIGTERM
save a checkpoint and stop the run.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax

import bert_jax
from bert_jax import cli, clock
from bert_jax.checkpoint import workdir as workdir_lib
from bert_jax.checkpoint.manager import Checkpoints
from bert_jax.config import ExperimentConfig
from bert_jax.data.corpus import corpus as corpus_lib
from bert_jax.distributed import devices, multihost, preemption, sharding, stopping
from bert_jax.distributed import mesh as mesh_lib
from bert_jax.errors import DivergedError, Interrupted
from bert_jax.loading import new_run
from bert_jax.monitoring.monitor import Monitor
from bert_jax.monitoring.progress import format_duration
from bert_jax.phases import Position, phase_of
from bert_jax.storage import lease
from bert_jax.training import compilation, optimizer, overview, rollbacks
from bert_jax.training import step as step_lib
from bert_jax.training.budget import Budget
from bert_jax.training.compilation import CompiledSteps
from bert_jax.training.evaluation import HeldOut
from bert_jax.training.saver import Saver, preservation, read_ranking
from bert_jax.training.step import TrainState
from bert_jax.training.stepper import Profiler, Stepper, training_batches


def train(config: ExperimentConfig, workdir: str) -> TrainState:
    """Trains from the newest checkpoint, or step 0, to the last step."""
    with Monitor(prints_start=True) as monitor:
        # ---- Inputs: checked before anything but compiled programs is written.
        prepare_probes = read_probes(config)
        mesh, corpus, start = open_inputs(config, workdir, monitor)

        # ---- State: initialized, or restored from the newest checkpoint.
        with monitor.activity("initializing"):
            saved_step = workdir_lib.lock_and_recover(workdir, config)
            first_step = saved_step or (start.step if start else 0)
            graphdef, init = step_lib.init_state(config)
            ranking = read_ranking(workdir, config, saved_step)
            checkpoints = Checkpoints(workdir, preservation(config.checkpoint, ranking))
            plan = checkpoints.plan(saved_step) if saved_step else None
            budget = Budget(config, workdir, first_step, plan, bert_jax.BEGAN)
            # The step is compiled while the state is made and the first batch is read.
            like = sharding.on_mesh(jax.eval_shape(init), mesh)
            train_step = step_lib.make_train_step(config, graphdef)
            jitted = compilation.jit(train_step)
            compiled = CompiledSteps(config, jitted, like, mesh)
            if first_step < budget.last_step:
                compiled.start(phase_of(config, first_step)[0])
            if saved_step:
                position = checkpoints.position(saved_step, corpus.sha256)
                position = rollbacks.with_rollback(workdir, saved_step, position)
                state = checkpoints.restore(saved_step, like, mesh)
            elif start:
                position, state = start.first_state(init, corpus, mesh)
            else:
                position, state = Position(corpus.sha256), init()
            workdir_lib.begin(workdir, config, saved_step)
            if first_step > saved_step:  # a branch
                checkpoints.save(first_step, state, config, position, budget.saved)
                checkpoints.wait()  # the run may then resume without its source

        # ---- Steps: taken in `take_steps`.
        probes = prepare_probes(corpus.tokenizer, graphdef, mesh)
        held_out = HeldOut(config, corpus, mesh, graphdef, probes)
        replayed = compilation.jit(train_step, donates_state=False)
        stepper = Stepper(config, corpus, mesh, compiled, replayed, monitor)
        saver = Saver(config, checkpoints, ranking, held_out, budget, monitor)
        announce(stepper, saver, state, first_step, start.notes if start else ())
        del start  # weights are as large as the parameters
        preemption.save_on_signals()
        state = train_with_rollbacks(stepper, saver, state, first_step, position)

        end(saver)
        return state


def announce(
    stepper: Stepper,
    saver: Saver,
    state: TrainState,
    first_step: int,
    notes: Sequence[str],
) -> None:
    """Prints what will be trained, and opens the trackers."""
    config, workdir, last_step = saver.config, saver.workdir, saver.budget.last_step
    sizes = overview.numbers(config, stepper.mesh, stepper.corpus, state)
    print(overview.describe(config, sizes, workdir, first_step, last_step), flush=True)
    for note in (*optimizer.schedule_notes(config), *notes):
        print(f"        {note}", flush=True)
    tracked = overview.tracked(config, sizes, workdir)
    saver.monitor.open_trackers(config.trackers, workdir, tracked)


def end(saver: Saver) -> None:
    """Verifies the last checkpoint, summarizes the results and unlocks the workdir."""
    preemption.restore_ctrl_c()
    last_step, workdir = saver.budget.last_step, saver.workdir
    with saver.monitor.activity("ending"):
        saver.checkpoints.close()
        log = saver.monitor.print
        multihost.agree(
            "end", lambda: log(overview.finish(workdir, last_step, saver.held_out))
        )
        if multihost.is_first() and (excess := round(saver.budget.excess())):
            log(f"config.budget_hours was exceeded by {format_duration(excess)}.")
        lease.release_all()


# ---------------------------------------------------------------------------- steps


def train_with_rollbacks(
    stepper: Stepper,
    saver: Saver,
    state: TrainState,
    first_step: int,
    position: Position,
) -> TrainState:
    """Takes the steps after `first_step`, rolling back as config.guard allows."""
    checkpoints, monitor, began = saver.checkpoints, saver.monitor, bert_jax.BEGAN
    while True:
        try:
            stepper.open_log(saver.workdir, first_step, position, began)
            if saver.config.budget_hours:
                monitor.write(first_step, {})  # the time of lines that were dropped
                monitor.flush()
            return take_steps(stepper, saver, state, first_step, position)
        except DivergedError as error:
            with monitor.activity("rolling back"):
                first_step, position = rollbacks.roll_back(
                    saver.config, saver.workdir, checkpoints, position, error
                )
            monitor.print(
                f"{error}; rolling back to step {first_step:,} and skipping the batches"
                f" of the {error.step - first_step:,} steps since"
            )
        # Restore outside of `except`: the traceback holds the state that diverged.
        began = clock()
        with monitor.activity("rolling back"):
            saver.ranking.drop_after(first_step)
            saver.budget.resume(first_step, checkpoints.plan(first_step))
            like = stepper.compiled.state
            state = checkpoints.restore(first_step, like, stepper.mesh)


def take_steps(
    stepper: Stepper,
    saver: Saver,
    state: TrainState,
    first_step: int,
    position: Position,
) -> TrainState:
    """The training loop: takes all steps after `first_step`."""
    budget = saver.budget
    if first_step and preemption.interrupted():  # a new run takes a step first
        raise Interrupted(f"step {first_step:,} is saved in {saver.workdir}")
    saver.evaluate_if_missing(first_step, state)
    batches = training_batches(
        stepper.corpus, stepper.config, stepper.mesh, first_step, position.skips
    )
    if first_step == budget.last_step:
        batches = iter(())
    # Process 0 traces its own devices.
    traced = stepper.config.profile if multihost.is_first() else ()
    profiler = Profiler(traced, saver.workdir, first_step, saver.monitor)
    with saver.finishing_saves(lambda: state), profiler:
        for step, phase_index, batch in saver.monitor.timed(batches):
            inputs = batch, *budget.arguments(step)
            state, metrics = stepper.take(profiler, step, phase_index, state, *inputs)
            saver.monitor.step(step, phase_index, metrics)  # raises if it diverged
            saver.check(step)
            is_last = step == budget.last_step
            if preemption.interrupted() and not is_last:
                saver.interrupt(step, state, position)
            is_best = saver.evaluate_if_due(step, state)
            if is_best or saver.is_time_to_save(step):
                saver.save(step, state, position)
            if is_last:
                break
        saver.monitor.flush()
    return state


# --------------------------------------------------------------------------- inputs


def open_inputs(
    config: ExperimentConfig, workdir: str, monitor: Monitor
) -> "tuple[jax.sharding.Mesh, corpus_lib.Corpus, new_run.Start | None]":
    """Opens the devices, the corpus and what a new run starts from; sets the mesh.

    At most a cache directory and a small corpus are made if an input is invalid.
    """
    if config.trackers:
        from bert_jax.monitoring import trackers

        multihost.agree("trackers", lambda: trackers.check_installed(config.trackers))
    with monitor.activity("opening devices"):
        devices.open_devices()
        mesh = mesh_lib.make_mesh(config.mesh)
        mesh_lib.check(config, mesh)
        is_begun = workdir_lib.is_begun(workdir, config)
        print(compilation.enable_cache(config.compilation_cache_dir), flush=True)
        jax.set_mesh(mesh)
    # Unbounded: preparing a large corpus takes hours, and uses no device.
    with monitor.activity("opening the corpus", is_bounded=False):
        corpus, start = new_run.open_inputs(config, is_begun)
    return mesh, corpus, start


def read_probes(
    config: ExperimentConfig,
) -> Callable[..., Callable[[Any], dict[str, float]]]:
    """Reads the probes; returns (tokenizer, graphdef, mesh) -> those of `HeldOut`."""
    if not config.eval.probes:
        return lambda *_: lambda params: {}
    # Probes use fine-tuning and inference, a sixth of the package.
    from bert_jax import probes

    examples = probes.read(config.eval.probes)
    return lambda *model: probes.prepare(examples, probes.Target(config, *model))


def main() -> None:
    values = cli.load_values(_CONFIG)
    workdir = _WORKDIR.value
    if workdir is None:
        workdir = f"runs/{cli.config_name(_CONFIG)}"
    workdir = cli.directory("workdir", workdir)
    config = new_run.complete(values, cli.given_keys(), workdir)
    multihost.join(config)
    preemption.exit_on_signals()
    train(config, workdir)
    if config.budget_hours:
        stopping.exit_now(0)  # unloading all libraries takes seconds


if __name__ == "__main__":
    _CONFIG = cli.define_config()
    _WORKDIR = cli.define_path(
        "workdir", "directory of the run; default runs/NAME-OF-CONFIG"
    )
    cli.run_and_leave(main, __doc__)
