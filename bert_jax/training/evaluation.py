"""Evaluates the model on held-out text, during and after training."""

import dataclasses
import functools
import itertools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from flax import nnx

from bert_jax.config import ExperimentConfig
from bert_jax.data.batches import pipeline
from bert_jax.data.corpus.corpus import Corpus
from bert_jax.distributed import mesh as mesh_lib
from bert_jax.distributed import sharding
from bert_jax.monitoring.writer import HELD_OUT_LOSS, HELD_OUT_SETTINGS, MAJORITY
from bert_jax.training import losses
from bert_jax.training.step import TrainState, make_eval_step

# Held-out pairs and masks are the same for all runs, independently of config.seed.
EVAL_SEED = 0


class HeldOut:
    """Evaluates on the fixed held-out batches of each phase."""

    def __init__(
        self,
        config: ExperimentConfig,
        corpus: Corpus,
        mesh: jax.sharding.Mesh,
        graphdef: nnx.GraphDef,
        probes: Callable[[Any], dict[str, float]],
    ):
        """Prepares to evaluate; `probes` maps parameters to further metrics by name."""
        self.corpus, self._config, self._mesh = corpus, config, mesh
        self._probes = probes
        self._eval_step = jax.jit(make_eval_step(config, graphdef))
        self.exists = bool(corpus.shards["validation"])
        part = mesh_lib.host_part(mesh, jax.process_index())
        self._batches = functools.cache(
            lambda phase_index: eval_batches(corpus, config, phase_index, part)
        )
        self._majority = functools.cache(
            lambda phase_index: next_sentence_majority(
                self._batches(phase_index)
                if part == (0, 1)
                else eval_batches(corpus, config, phase_index)
            )
        )

    def evaluate(self, state: TrainState, phase_index: int) -> dict[str, float]:
        """Returns the held-out metrics as eval_NAME, and the results of the probes.

        eval_loss is the weighted sum of the objectives' losses, and MAJORITY is the
        next-sentence accuracy of always giving the more frequent label. eval_NAME of
        the keys in HELD_OUT_SETTINGS are the settings of the evaluation.
        """
        result = evaluate(
            self._eval_step,
            state.weights,
            self._batches(phase_index),
            self._mesh,
            self._config.accumulation_steps,
        )
        loss = losses.total_loss(result, self._config.loss_weights)
        settings = dataclasses.asdict(self._config.eval)
        result |= {name: settings[name] for name in HELD_OUT_SETTINGS}
        held_out = {f"eval_{name}": value for name, value in result.items()}
        if (majority := self._majority(phase_index)) is not None:
            held_out[MAJORITY] = majority
        return {HELD_OUT_LOSS: loss} | held_out | self._probes(state.weights)


def eval_batches(
    corpus: Corpus,
    config: ExperimentConfig,
    phase_index: int,
    part: tuple[int, int] = (0, 1),
) -> list[pipeline.Batch]:
    """Returns the held-out batches of a phase, the same in every call.

    They are masked at the rate of config.eval, up to the phase's max_predictions, so
    that runs with different training rates are comparable. The part (i, n) is the i-th
    of n equal parts of each batch's rows.
    """
    data = dataclasses.replace(
        config.data, masked_lm_prob=config.eval.masked_lm_prob, final_masked_lm_prob=0.0
    )
    batches = pipeline.batches(
        corpus,
        dataclasses.replace(config, data=data),
        split="validation",
        seed=EVAL_SEED,
        phase_index=phase_index,
        first_step=0,
        host=part[0],
        num_hosts=part[1],
    )
    size = config.phases[phase_index].global_batch_size
    num_batches = -(-config.eval.num_sequences // size)
    # The pipeline slices these batches out of larger arrays; copying frees those.
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

    Each batch is split as in training, so that it needs no more memory. Every process
    has the same number of batches.
    """
    totals: dict[str, list[float]] = {}
    for batch in batches:
        for i in range(accumulation_steps):
            part = {name: rows[i::accumulation_steps] for name, rows in batch.items()}
            placed = sharding.place_batch(part, mesh)
            sums, counts = jax.device_get(eval_step(params, placed))
            for name in sums:
                total = totals.setdefault(name, [0.0, 0.0])
                total[0] += float(sums[name])
                total[1] += float(counts[name])
    return {name: total / count for name, (total, count) in totals.items()}


def unigram_entropy(corpus: Corpus) -> float | None:
    """Returns the entropy of the held-out token frequencies, if any, in nats."""
    if not corpus.shards["validation"]:
        return None
    counts = np.zeros(len(corpus.tokenizer.vocab), np.int64)
    for shard in corpus.shards["validation"]:
        tokens, _ = corpus.load(shard)
        counts += np.bincount(tokens, minlength=len(counts))
    shares = counts[counts > 0] / counts.sum()
    return float(-np.sum(shares * np.log(shares)))


def next_sentence_majority(batches: list[pipeline.Batch]) -> float | None:
    """Returns the share of the more frequent label, or None if there are no pairs."""
    labels, weights = (
        np.concatenate([batch[f"next_sentence_{name}"] for batch in batches])
        for name in ("labels", "weights")
    )
    if not weights.any():
        return None
    share = float((labels * weights).sum() / weights.sum())
    return max(share, 1.0 - share)
