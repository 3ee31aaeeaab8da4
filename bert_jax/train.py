"""Pretrains BERT: config -> mesh -> data -> state -> loop.

    python -m bert_jax.train --config=configs/X.py [--workdir=DIR]
        [--config.KEY=VALUE ...]

Continues by itself when the workdir holds a checkpoint.
"""

import dataclasses
import functools
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
from absl import flags

from bert_jax import (
    command_line,
    compiled_steps,
    devices,
    evaluate,
    hosts,
    metrics,
    optim,
    prepare,
    pretrained,
    report,
    runs,
    sharding,
    steps,
)
from bert_jax.checkpoint import Checkpoints, newest_step
from bert_jax.config import ConfigError, ExperimentConfig
from bert_jax.data import corpus as corpus_lib
from bert_jax.data import pipeline, tokenizers
from bert_jax.startup import Startup, keep_compiled
from bert_jax.watchdog import Watchdog


def train(config: ExperimentConfig, workdir: str) -> steps.TrainState:
    """Trains from the workdir's newest checkpoint, or from new weights, to the end."""
    startup = Startup()
    # ---- What it needs, checked before anything is written.
    mesh, first_step, corpus, weights = open_inputs(config, workdir)
    hosts.make_shared("workdir", workdir)
    startup.mark("corpus")

    # ---- State: first weights, or where the last call stopped.
    tx, schedule = optim.make_optimizer(config)
    graphdef, init = steps.init_state(config, tx)
    checkpoints = Checkpoints(workdir, config.checkpoint)
    if first_step:
        checkpoints.check_corpus(first_step, corpus.sha256)
        state = checkpoints.restore(first_step, jax.eval_shape(init), mesh)
    else:
        state = first_state(init, weights)
    if hosts.is_first():
        runs.write_config(workdir, config)
    print(describe(config, mesh, corpus, state, workdir, first_step), flush=True)
    for note in weights.notes if weights else ():
        print(f"        {note}", flush=True)
    del weights  # as large as the parameters
    startup.mark("state")

    # ---- Steps.
    train_step = compiled_steps.jit(
        steps.make_train_step(config, graphdef, tx, schedule)
    )
    compiled = compiled_steps.CompiledSteps(config, train_step, state, mesh)
    if first_step < config.num_steps:
        compiled.begin(runs.phase_of(config, first_step)[0])
    eval_step = jax.jit(steps.make_eval_step(config, graphdef))
    start = time.time()
    held_out = HeldOut(config, corpus, mesh, eval_step)
    writer = metrics.open_writer(workdir, first_step, hosts.is_first())
    progress = report.Progress(first_step, config.num_steps)
    log = metrics.StepLog(config, writer, progress.update)
    watchdog = Watchdog()

    step, last_metrics = first_step, {}
    try:
        stop_if_asked_already(first_step, workdir)
        for phase_index, batch in global_batches(config, corpus, mesh, first_step):
            startup.mark("data")
            is_ready = compiled.is_ready(phase_index)
            if not is_ready:
                watchdog.rest()  # compiling takes its time
            train_step = compiled.of(phase_index)
            if not is_ready:
                watchdog.saw("compilation")
            startup.mark("compile")
            state, step_metrics = train_step(state, batch)
            startup.finish("first step", step_metrics, progress.say)
            step += 1
            # One step ahead, so that the watchdog sees which are done. Not on a CPU:
            # simulated devices deadlock in collectives when steps queue up (seen with
            # jax 0.10 and 0.12), and it gains nothing from running ahead.
            on_cpu = jax.default_backend() == "cpu"
            jax.block_until_ready(state if on_cpu else last_metrics)
            last_metrics = step_metrics
            watchdog.saw(f"step {step:,}")
            log.add(step, phase_index, step_metrics)
            is_last = step == config.num_steps
            is_interrupted = hosts.interrupted(step) and not is_last
            if is_interrupted:  # saved first: there may be seconds left
                log.flush()
                checkpoints.save(step, state, config, corpus.sha256)
            if held_out.exists and (is_last or step % config.eval.every_steps == 0):
                log.flush()
                watchdog.rest()
                line = held_out.evaluate(state, phase_index)
                watchdog.saw("evaluation")
                writer.write(step, line)
                progress.say(f"step {step:,} held out: {report.held_out_words(line)}")
                log.stop_clock()
            if is_interrupted:
                watchdog.rest()
                checkpoints.close()
                writer.close()
                raise hosts.Interrupted(f"step {step:,} is saved in {workdir}")
            if is_last or step % config.checkpoint.every_steps == 0:
                log.flush()  # what a resumed run will not see again
                writer.flush()
                checkpoints.save(step, state, config, corpus.sha256)
    finally:
        watchdog.rest()
        progress.close()

    # ---- The end: everything on disk, a picture and a paragraph.
    log.flush()
    checkpoints.close()
    writer.close()
    if hosts.is_first():
        show_end(config, workdir, held_out, time.time() - start)
    return state


def open_inputs(
    config: ExperimentConfig, workdir: str
) -> tuple[jax.sharding.Mesh, int, corpus_lib.Corpus, pretrained.Weights | None]:
    """Returns the mesh, which is set, the step to go on at, corpus and first weights.

    Raises:
      ConfigError: for everything a person can get wrong; but for a small corpus, which
        is prepared last, nothing is written before.
    """
    command_line.local_directory("workdir", workdir)
    devices.open_devices()
    keep_compiled(config)
    mesh = sharding.make_mesh(config.mesh)
    check_mesh(config, mesh)
    runs.check_continues(workdir, config)
    first_step = newest_step(workdir)
    hosts.check_same(
        "newest checkpoint",
        str(first_step),
        f"--workdir={workdir} is not the same directory on all hosts",
    )
    jax.set_mesh(mesh)
    if first_step or not config.init_from:
        return mesh, first_step, find_corpus(config), None
    source = pretrained.open_source(config)
    if config.tokenizer.vocab_file:  # so weights can be read before a corpus is made
        tokenizer = tokenizers.load(config.tokenizer)
        weights = pretrained.read(source, config, tokenizer)
        return mesh, 0, find_corpus(config), weights
    corpus = find_corpus(config)
    return mesh, 0, corpus, pretrained.read(source, config, corpus.tokenizer)


def find_corpus(config: ExperimentConfig) -> corpus_lib.Corpus:
    """Opens the corpus, the same one in every process; process 0 may prepare it."""

    def find() -> corpus_lib.Corpus:
        if hosts.is_first():
            return prepare.find_corpus(config)
        hosts.wait_for(lambda: corpus_lib.exists(config.data.corpus_dir))
        return corpus_lib.read(config)

    corpus = hosts.first_then_others("corpus", find)
    hosts.check_same(
        "corpus digest",
        corpus.sha256,
        f"config.data.corpus_dir={config.data.corpus_dir!r} has another corpus on"
        " another host; give a directory that all hosts share",
    )
    return corpus


def stop_if_asked_already(first_step: int, workdir: str) -> None:
    """Raises Interrupted when SIGTERM came before the first step of a resumed run.

    The notice then waits to be asked of step 1, which a resumed run never comes to.
    """
    if first_step:
        if hosts.interrupted(1):
            raise hosts.Interrupted(f"step {first_step:,} is saved in {workdir}")
        hosts.interrupted(first_step)


def show_end(
    config: ExperimentConfig, workdir: str, held_out: "HeldOut", seconds: float
) -> None:
    """Draws the curves and prints the closing paragraph."""
    lines = metrics.read(workdir)
    report.plot_curves(workdir, lines, held_out.unigram_entropy)
    print(
        report.closing_words(
            workdir,
            config.num_steps,
            seconds,
            lines,
            held_out.unigram_entropy,
            held_out.next_sentence_majority,
        )
    )


def first_state(
    init: Callable[[], steps.TrainState], weights: pretrained.Weights | None
) -> steps.TrainState:
    """Returns the state of step 0: random weights, or those of another model."""
    state = init()
    if weights is None:
        return state
    params = pretrained.place(state.params, weights.arrays)
    return dataclasses.replace(state, params=params)


class HeldOut:
    """The fixed held-out batches of each phase, and what guessing scores on them."""

    def __init__(
        self,
        config: ExperimentConfig,
        corpus: corpus_lib.Corpus,
        mesh: jax.sharding.Mesh,
        eval_step: Callable[..., Any],
    ):
        self._config, self._corpus = config, corpus
        self._mesh, self._eval_step = mesh, eval_step
        self.exists = bool(corpus.shards["validation"])
        self._batches = functools.cache(
            functools.partial(
                evaluate.eval_batches,
                corpus,
                config,
                part=sharding.host_part(mesh, jax.process_index()),
            )
        )

    def evaluate(self, state: steps.TrainState, phase_index: int) -> dict[str, float]:
        """Returns the held-out metrics under names that begin with eval_."""
        result = evaluate.evaluate(
            self._eval_step,
            state.params,
            self._batches(phase_index),
            self._mesh,
            self._config.accumulation_steps,
        )
        return {f"eval_{name}": value for name, value in result.items()}

    @functools.cached_property
    def unigram_entropy(self) -> float | None:
        return evaluate.unigram_entropy(self._corpus) if self.exists else None

    @functools.cached_property
    def next_sentence_majority(self) -> float | None:
        if not self.exists:
            return None
        last_phase = len(self._config.phases) - 1
        return evaluate.next_sentence_majority(
            evaluate.eval_batches(self._corpus, self._config, last_phase)
        )


def global_batches(
    config: ExperimentConfig,
    corpus: corpus_lib.Corpus,
    mesh: jax.sharding.Mesh,
    first_step: int,
) -> Iterator[tuple[int, steps.Batch]]:
    """Yields (phase, batch on the devices) of every step from `first_step` to the last.

    The next batch is on its way to the devices while a step runs.
    """

    host, num_hosts = sharding.host_part(mesh, jax.process_index())

    def placed() -> Iterator[tuple[int, steps.Batch]]:
        phase_index, first = runs.phase_of(config, first_step)
        for index, phase in enumerate(config.phases[phase_index:], start=phase_index):
            batches = pipeline.batches(
                corpus,
                config,
                split="train",
                seed=config.seed,
                phase_index=index,
                first_step=first,
                host=host,
                num_hosts=num_hosts,
            )
            for _ in range(first, phase.num_steps):
                yield index, sharding.place_batch(next(batches), mesh)
            first = 0

    ahead = placed()
    current = next(ahead, None)
    while current is not None:
        following = next(ahead, None)
        yield current
        current = following


def check_mesh(config: ExperimentConfig, mesh: jax.sharding.Mesh) -> None:
    """Raises ConfigError when batches or parameters do not divide over the mesh."""
    rows = sharding.batch_divisor(mesh) * config.accumulation_steps
    for i, phase in enumerate(config.phases):
        size = phase.global_batch_size
        if size % rows:
            raise ConfigError(
                f"config.phases[{i}].global_batch_size={size} must be a multiple of"
                f" mesh.data * mesh.fsdp * accumulation_steps = {rows}; try"
                f" {max(size // rows, 1) * rows} or {(size // rows + 1) * rows}"
            )
    model = config.model
    for key, size, axis in (
        ("model.hidden_size", model.hidden_size, "fsdp"),
        ("model.num_attention_heads", model.num_attention_heads, "tensor"),
        ("model.intermediate_size", model.intermediate_size, "tensor"),
    ):
        if size % mesh.shape[axis]:
            raise ConfigError(
                f"config.mesh.{axis}={mesh.shape[axis]} must divide config.{key}={size}"
            )
    split = sharding.batch_divisor(mesh)  # data * fsdp
    if config.mesh.shard_optimizer and model.hidden_size % split:
        raise ConfigError(
            f"config.mesh.shard_optimizer=True needs mesh.data * mesh.fsdp={split} to"
            f" divide config.model.hidden_size={model.hidden_size}"
        )
    sharding.host_part(mesh, jax.process_index())


def describe(
    config: ExperimentConfig,
    mesh: jax.sharding.Mesh,
    corpus: corpus_lib.Corpus,
    state: steps.TrainState,
    workdir: str,
    first_step: int,
) -> str:
    """Returns a few lines on what is about to happen."""
    model = config.model
    num_parameters = sum(x.size for x in jax.tree.leaves(state.params))
    axes = " x ".join(f"{axis} {mesh.shape[axis]}" for axis in sharding.AXES)
    tokens = sum(shard.num_tokens for shard in corpus.shards["train"])
    phases = ", ".join(
        f"{phase.num_steps:,} steps of {phase.global_batch_size:,} x"
        f" {phase.sequence_length}"
        for phase in config.phases
    )
    num_processes = jax.process_count()
    processes = f" in {num_processes} processes" if num_processes > 1 else ""
    start = "from new weights"
    if first_step:
        start = f"continuing at step {first_step:,}"
    elif config.init_from:
        start = f"from the weights in {config.init_from} with a new optimizer"
    return "\n".join(
        [
            f"model:  {num_parameters:,} parameters, {model.num_hidden_layers} layers"
            f" of {model.hidden_size}, {steps.compute_dtype(config)}",
            f"device: {jax.device_count()} x {jax.devices()[0].device_kind}{processes},"
            f" mesh {axes}",
            f"data:   {tokens:,} tokens in {config.data.corpus_dir}",
            f"train:  {phases} tokens, {start}, workdir {workdir}",
        ]
    )


def main() -> None:
    config = command_line.load_config(_CONFIG)
    workdir = _WORKDIR.value or f"runs/{command_line.config_name(_CONFIG)}"
    hosts.join()
    with hosts.together():
        train(config, workdir)


if __name__ == "__main__":
    _CONFIG = command_line.define_config()
    _WORKDIR = flags.DEFINE_string(
        "workdir", None, "where the run is kept; runs/NAME-OF-CONFIG if absent"
    )
    command_line.run(main, __doc__)
