"""The training loop of the peers of benchmarks.time_to_loss.

A peer is a module with these names:

    NAME: its description in a row.
    PACKAGE, INSTALL: the module that it needs, and the command that installs it.
    OPTIONS: values of `option`, with which a step is timed.
    Trainer(config, start, option): a model and its optimizer, with the weights of a
        directory in the format of transformers; `option` has a default. inputs(batch)
        converts a batch, step(inputs) takes a step, and weights() returns the weights
        by our names. It follows the config of a run of bert_jax.train with one pair in
        a row.
"""

import concurrent.futures
import functools
import itertools
import multiprocessing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np

from bert_jax.config import ExperimentConfig
from bert_jax.data.batches import pipeline
from bert_jax.data.corpus import corpus as corpus_lib
from bert_jax.distributed import mesh as mesh_lib
from bert_jax.interop import huggingface_read
from bert_jax.loading import init_from
from bert_jax.loading import trained_run as run_lib
from bert_jax.model import parameters
from bert_jax.training import optimizer


def train_apart(*arguments: Any) -> dict[int, Path]:
    """Runs `train` in a process of its own.

    The peer's threads, memory and environment variables are confined to it.
    """
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(1, context) as process:
        return process.submit(train, *arguments).result()


def train(
    make: Callable[[ExperimentConfig, Path], Any],
    config: ExperimentConfig,
    start: Path,
    directory: Path,
    every: int,
) -> dict[int, Path]:
    """Trains on the batches of a run and saves the weights after every `every` steps.

    Returns:
      The file of the saved weights, by step.
    """
    directory.mkdir(parents=True, exist_ok=True)
    trainer = make(config, start)
    saved: dict[int, Path] = {}
    training_batches = batches(config)
    for step in range(1, config.num_steps + 1):
        trainer.step(trainer.inputs(next(training_batches)))
        if step % every == 0:
            saved[step] = directory / f"{step}.npz"
            np.savez(saved[step], **trainer.weights())
    return saved


def read(path: Path, run: run_lib.OpenedRun) -> Any:
    """Returns the weights that `train` has saved as parameters of an opened run."""
    with np.load(path) as arrays:
        return parameters.place(run.params, dict(arrays))


def make_step(
    make: Callable[[ExperimentConfig, Path, Any], Any],
    config: ExperimentConfig,
    batch: pipeline.Batch,
    start: Path,
    option: Any,
) -> Callable[[], None]:
    """Returns a step on a batch, for `rows.alternate`."""
    trainer = make(config, start, option)
    return functools.partial(trainer.step, trainer.inputs(batch))


def batches(config: ExperimentConfig) -> Iterator[pipeline.Batch]:
    """Returns the training batches of a run of one phase, from the first step."""
    return pipeline.batches(
        corpus_lib.read(config),
        config,
        split="train",
        seed=config.seed,
        phase_index=0,
        first_step=0,
    )


def learning_rates(config: ExperimentConfig) -> Iterator[float]:
    """Yields the learning rate of each step of a run, and then again, to time steps."""
    schedule = optimizer.make_schedule(config)
    rates = jax.vmap(schedule)(np.arange(config.num_steps))
    return itertools.cycle(np.asarray(rates).tolist())


def read_arrays(directory: Path, config: ExperimentConfig) -> dict[str, np.ndarray]:
    """Returns weights in the format of transformers by our names."""
    with jax.set_mesh(mesh_lib.make_mesh(config.mesh)):
        names = init_from.parameter_shapes(config)
    source = huggingface_read.open_source(directory)
    return source.read(names.keys() & source.names.keys())
