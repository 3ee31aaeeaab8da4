"""Held-out masked-LM and next-sentence metrics of a checkpoint.

    python -m bert_jax.evaluate --workdir=DIR [--step=N] [--corpus_dir=DIR]

Prints one JSON object: step, masked_lm_loss, masked_lm_accuracy, next_sentence_loss,
next_sentence_accuracy, unigram_entropy (nats, of the held-out tokens: the masked-LM
loss of guessing by frequency alone) and next_sentence_majority (the accuracy of always
answering with the commoner label); with config.data.next_sentence=False nothing of next
sentences. Pairs and masks are the same in every call.
"""

import dataclasses
import itertools
import json
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from absl import flags

from bert_jax import cli
from bert_jax.config import ExperimentConfig
from bert_jax.data.batches import pipeline
from bert_jax.data.corpus.corpus import Corpus
from bert_jax.distributed import mesh as mesh_lib
from bert_jax.distributed import sharding
from bert_jax.errors import ConfigError
from bert_jax.loading import run as run_lib

# Pairs and masks of held-out documents are fixed for all runs, whatever their seed.
EVAL_SEED = 0


def eval_batches(
    corpus: Corpus,
    config: ExperimentConfig,
    phase_index: int,
    part: tuple[int, int] = (0, 1),
) -> list[pipeline.Batch]:
    """Returns the held-out batches, the same at every call.

    They are masked at the rate of config.eval, up to the phase's max_predictions, so
    that runs of other rates can be compared.

    Args:
      corpus: with held-out documents.
      config: of the run.
      phase_index: whose length and batch size they have.
      part: (i, n) for the i-th of n parts of each batch's rows.
    """
    host, num_hosts = part
    masked_lm_prob = config.eval.masked_lm_prob
    data = dataclasses.replace(config.data, masked_lm_prob=masked_lm_prob)
    batches = pipeline.batches(
        corpus,
        dataclasses.replace(config, data=data),
        split="validation",
        seed=EVAL_SEED,
        phase_index=phase_index,
        first_step=0,
        host=host,
        num_hosts=num_hosts,
    )
    size = config.phases[phase_index].global_batch_size
    num_batches = -(-config.eval.num_sequences // size)
    # Several batches are made as one; copied, so that what is too much is not kept.
    return [
        {name: rows.copy() for name, rows in batch.items()}
        for batch in itertools.islice(batches, num_batches)
    ]


def evaluate(
    eval_step: Callable[..., Any],
    params: Any,
    batches: list[pipeline.Batch],
    mesh: jax.sharding.Mesh,
    accumulation_steps: int,
) -> dict[str, float]:
    """Returns the mean of each metric over all masked positions or pairs.

    Takes a batch in as many parts as training does, so that it needs no more memory.
    """
    totals: dict[str, list[float]] = {}
    for batch in batches:
        for i in range(accumulation_steps):
            part = {name: rows[i::accumulation_steps] for name, rows in batch.items()}
            sums, counts = jax.device_get(
                eval_step(params, sharding.place_batch(part, mesh))
            )
            for name in sums:
                total = totals.setdefault(name, [0.0, 0.0])
                total[0] += float(sums[name])
                total[1] += float(counts[name])
    return {name: total / count for name, (total, count) in totals.items()}


def unigram_entropy(corpus: Corpus) -> float:
    """Returns the entropy in nats of the held-out tokens' frequencies."""
    counts = np.zeros(len(corpus.tokenizer.vocab), np.int64)
    for shard in corpus.shards["validation"]:
        tokens, _ = corpus.load(shard)
        counts += np.bincount(tokens, minlength=len(counts))
    shares = counts[counts > 0] / counts.sum()
    return float(-np.sum(shares * np.log(shares)))


def next_sentence_majority(batches: list[pipeline.Batch]) -> float | None:
    """Returns the share of the commoner label, None where there are no pairs."""
    labels, weights = (
        np.concatenate([batch[f"next_sentence_{name}"] for batch in batches])
        for name in ("labels", "weights")
    )
    if not weights.any():
        return None
    share = float((labels * weights).sum() / weights.sum())
    return max(share, 1.0 - share)


def main() -> None:
    (workdir,) = cli.require("workdir")
    cli.local_directory("workdir", workdir)
    run = run_lib.open_run(workdir, _STEP.value, _CORPUS_DIR.value)
    if not run.corpus.shards["validation"]:
        raise ConfigError(
            f"the corpus in {run.config.data.corpus_dir!r} has no held-out documents;"
            " prepare one with config.data.validation_fraction above 0"
        )
    made = run.corpus, run.config, run.phase_index
    metrics = evaluate(
        run.eval_step,
        run.params,
        eval_batches(*made, mesh_lib.host_part(run.mesh, jax.process_index())),
        run.mesh,
        run.accumulation_steps,
    )
    result = {
        "step": run.step,
        **metrics,
        "unigram_entropy": unigram_entropy(run.corpus),
    }
    if run.config.data.next_sentence:
        result["next_sentence_majority"] = next_sentence_majority(eval_batches(*made))
    print(json.dumps(result))


if __name__ == "__main__":
    flags.DEFINE_string("workdir", None, "directory of a training run")
    _STEP = flags.DEFINE_integer(
        "step", None, "checkpoint to use; the newest if absent"
    )
    _CORPUS_DIR = flags.DEFINE_string(
        "corpus_dir", None, "where the run's corpus is, if it was moved"
    )
    cli.run(main, __doc__)
