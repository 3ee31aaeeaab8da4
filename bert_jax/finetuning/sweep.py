"""Runs a sweep: one fine-tuning run for each learning rate and seed."""

import time
from collections.abc import Sequence

from bert_jax.distributed import multihost, preemption
from bert_jax.finetuning import inputs, outcome, report, settings
from bert_jax.finetuning import results as results_lib
from bert_jax.finetuning import run as tuning
from bert_jax.finetuning.config import FinetuneConfig
from bert_jax.finetuning.inputs import Start
from bert_jax.finetuning.results import Result


def sweep(
    config: FinetuneConfig,
    start: Start,
    workdir: str,
    learning_rates: Sequence[float],
    seeds: Sequence[int],
) -> list[Result]:
    """Runs every learning rate and seed, and writes the best model.

    Completed runs of earlier calls are not repeated, and an interrupted one resumes.

    Args:
      config: the config of all runs; each has its own learning rate.
      start: the model that all runs start from.
      workdir: the directory of the sweep, the same for all processes.
      learning_rates, seeds: each pair of them is a run.

    Returns:
      The results of all runs in the workdir, those of earlier calls included.

    Raises:
      ConfigError: if an input is invalid, or the workdir has other settings.
      AllDivergedError: if every run diverged before its first evaluation.
      Interrupted: when the run was interrupted and a checkpoint is saved.
    """
    began = time.monotonic()
    setup = inputs.open_inputs(config, start, workdir)
    multihost.make_shared("workdir", workdir)
    multihost.agree("workdir", lambda: settings.take(workdir, setup, start))
    print(report.describe(setup, start, workdir), flush=True)
    preemption.save_on_signals()
    for learning_rate in learning_rates:
        for seed in seeds:
            if len(learning_rates) * len(seeds) > 1:
                print(f"learning rate {learning_rate:g}, seed {seed}:", flush=True)
            directory = results_lib.directory_of(workdir, learning_rate, seed)
            if results_lib.read(directory):
                print("already complete", flush=True)
            result = tuning.tune(setup, learning_rate, seed, directory)
            if result.diverged:
                print(f"diverged: {result.diverged}", flush=True)
    preemption.restore_ctrl_c()
    results = results_lib.read_all(results_lib.runs_directory(workdir))
    outcome.write(setup, workdir, results, time.monotonic() - began)
    return results
