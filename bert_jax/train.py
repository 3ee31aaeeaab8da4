"""Pretrains BERT on the text that a config file names.

    python -m bert_jax.train --config=configs/X.py [--workdir=DIR]
        [--config.KEY=VALUE ...]

Continues by itself when the workdir holds a checkpoint. Ctrl-C and SIGTERM save one.
"""

import dataclasses
import time
from collections.abc import Callable

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
from bert_jax.distributed.watchdog import Watchdog
from bert_jax.loading import initialize
from bert_jax.model import parameters
from bert_jax.monitoring import report, writer
from bert_jax.monitoring.goodput import Startup
from bert_jax.phases import Position, phase_of
from bert_jax.training import compilation, loop, optimizer, rollbacks
from bert_jax.training import step as step_lib
from bert_jax.training.compilation import CompiledSteps, keep_compiled
from bert_jax.training.evaluation import HeldOut
from bert_jax.training.replay import Replay


def train(config: ExperimentConfig, workdir: str) -> step_lib.TrainState:
    """Trains from the workdir's newest checkpoint, or from new weights, to the end."""
    with Watchdog() as watchdog:
        return watched(config, workdir, watchdog)


def watched(
    config: ExperimentConfig, workdir: str, watchdog: Watchdog
) -> step_lib.TrainState:
    """As `train`; the watchdog hears of each part."""
    startup = Startup()
    # ---- What it needs, checked before anything is written.
    mesh, corpus, weights = open_inputs(config, workdir, watchdog)
    watchdog.begin("making or restoring the state")
    multihost.make_shared("workdir", workdir)
    first_step = take_workdir(workdir, config)
    startup.mark("corpus")

    # ---- State: first weights, or where the last call stopped.
    tx, schedule = optimizer.make_optimizer(config)
    graphdef, init = step_lib.init_state(config, tx)
    ranking = best.read(workdir, config, first_step)
    checkpoints = Checkpoints(workdir, config.checkpoint, ranking)
    position = Position(corpus.sha256)
    if first_step:
        position = rollbacks.resumed(
            workdir, first_step, checkpoints.position(first_step, corpus.sha256)
        )
        state = checkpoints.restore(first_step, jax.eval_shape(init), mesh)
    else:
        state = first_state(init, weights)
    if multihost.is_first():
        if not first_step:
            rollbacks.clear(workdir)
        workdir_lib.write_config(workdir, config)
    print(describe(config, mesh, corpus, state, workdir, first_step), flush=True)
    for note in (
        *optimizer.schedule_notes(config),
        *(weights.notes if weights else ()),
    ):
        print(f"        {note}", flush=True)
    del weights  # as large as the parameters
    startup.mark("state")

    # ---- Steps.
    train_step = step_lib.make_train_step(config, graphdef, tx, schedule)
    compiled = CompiledSteps(config, compilation.jit(train_step), state, mesh)
    if first_step < config.num_steps:
        compiled.begin(phase_of(config, first_step)[0])
    run = loop.Run(
        config=config,
        workdir=workdir,
        mesh=mesh,
        corpus=corpus,
        checkpoints=checkpoints,
        ranking=ranking,
        compiled=compiled,
        replay=Replay(config, train_step),
        held_out=HeldOut(config, corpus, mesh, graphdef),
        startup=startup,
        watchdog=watchdog,
    )
    preemption.save_on_signals()
    watchdog.begin("the steps")
    state = loop.take_steps(run, state, first_step, position)

    # ---- The end: everything sound on disk, a picture and a few words.
    preemption.restore_ctrl_c()
    watchdog.begin("the end")
    checkpoints.close()

    def end() -> str:
        remedy = "the same command goes on from step {}"
        integrity.check(workdir, config.num_steps, remedy)
        show_end(config, workdir, run.held_out, time.time() - startup.began)
        return ""

    multihost.agree("end", end)  # nobody is done before the last checkpoint is sound
    return state


def open_inputs(
    config: ExperimentConfig, workdir: str, watchdog: Watchdog
) -> tuple[jax.sharding.Mesh, corpus_lib.Corpus, initialize.Weights | None]:
    """Returns the mesh, which is set, the corpus and first weights, if any are given.

    Raises:
      ConfigError: for everything a person can get wrong; but for a small corpus, which
        is prepared last, nothing is written before.
    """
    cli.local_directory("workdir", workdir)
    watchdog.begin("opening devices")
    devices.open_devices()
    keep_compiled(config.compilation_cache_dir)
    mesh = mesh_lib.make_mesh(config.mesh)
    mesh_lib.check_mesh(config, mesh)
    workdir_lib.check_continues(workdir, config)
    is_begun = bool(integrity.steps(workdir))
    multihost.check_same(
        "begun",
        str(is_begun),
        f"--workdir={workdir} is not the same directory on all hosts",
    )
    jax.set_mesh(mesh)
    watchdog.pause()  # a large corpus is prepared for hours, and no device is used
    if is_begun or not config.init_from:
        return mesh, find_corpus(config), None
    source = initialize.open_source(config)
    if config.tokenizer.vocab_file:  # so weights can be read before a corpus is made
        tokenizer = tokenizers.load(config.tokenizer)
        weights = initialize.read(source, config, tokenizer)
        return mesh, find_corpus(config), weights
    corpus = find_corpus(config)
    return mesh, corpus, initialize.read(source, config, corpus.tokenizer)


def take_workdir(workdir: str, config: ExperimentConfig) -> int:
    """Locks the workdir and returns the step to go on at, that of a sound checkpoint.

    Raises:
      ConfigError: when another process writes there, or did so since `open_inputs`.
      CorruptError: when there are checkpoints but none is sound.
    """

    def first() -> str:
        workdir_lib.hold(workdir)
        workdir_lib.check_continues(workdir, config)
        return str(integrity.recover(workdir))

    return int(multihost.agree("first step", first))


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
        f"config.data.corpus_dir={config.data.corpus_dir!r} has another corpus on"
        " another host; give a directory that all hosts share",
    )
    return corpus


def show_end(
    config: ExperimentConfig, workdir: str, held_out: HeldOut, seconds: float
) -> None:
    """Draws the curves and prints the closing words."""
    lines = writer.read(workdir)
    report.plot_curves(workdir, lines, held_out.unigram_entropy)
    print(
        report.closing_words(
            workdir,
            config.num_steps,
            seconds,
            lines,
            held_out.unigram_entropy,
            held_out.next_sentence_majority,
            multihost.num_processes(),
        )
    )


def first_state(
    init: Callable[[], step_lib.TrainState], weights: initialize.Weights | None
) -> step_lib.TrainState:
    """Returns the state of step 0: random weights, or those of another model."""
    state = init()
    if weights is None:
        return state
    params = parameters.place(state.params, weights.arrays)
    return dataclasses.replace(state, params=params)


def describe(
    config: ExperimentConfig,
    mesh: jax.sharding.Mesh,
    corpus: corpus_lib.Corpus,
    state: step_lib.TrainState,
    workdir: str,
    first_step: int,
) -> str:
    """Returns a few lines on what is about to happen."""
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
    start = "from new weights"
    if first_step == config.num_steps:
        start = "all of them taken before"
    elif first_step:
        start = f"continuing at step {first_step:,}"
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
        "workdir", None, "where the run is kept; runs/NAME-OF-CONFIG if absent"
    )
    cli.run_and_leave(main, __doc__)
