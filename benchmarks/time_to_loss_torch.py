"""A PyTorch training loop around transformers' BertForPreTraining.

A peer of benchmarks.time_to_loss: it starts from the same weights, reads the same
batches, and has the same dropout, learning rates, weight decay and clipping. AdamW is
torch's, with bias correction.
"""

import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import time_to_loss_peer
from bert_jax.config import ExperimentConfig
from bert_jax.data.batches import pipeline
from bert_jax.loading import trained_run as run_lib
from bert_jax.model import parameters

NAME = "transformers BertForPreTraining in a PyTorch loop"
PACKAGE, INSTALL = "torch", "pip install -r requirements-parity.txt"
NOT_DECAYED = ("bias", "LayerNorm.weight")


class Trainer:
    """The model and its optimizer; see time_to_loss_peer.Trainer."""

    def __init__(self, config: ExperimentConfig, start: Path):
        import torch
        import transformers

        torch.manual_seed(config.seed)
        self.model = transformers.BertForPreTraining.from_pretrained(
            start,
            hidden_dropout_prob=config.model.hidden_dropout_prob,
            attention_probs_dropout_prob=config.model.attention_probs_dropout_prob,
        )
        self.model.train()
        named = list(self.model.named_parameters())
        decayed = [p for name, p in named if not name.endswith(NOT_DECAYED)]
        others = [p for name, p in named if name.endswith(NOT_DECAYED)]
        rate = config.optimizer
        self._adamw = torch.optim.AdamW(
            [
                {"params": decayed, "weight_decay": rate.weight_decay},
                {"params": others, "weight_decay": 0.0},
            ],
            lr=rate.learning_rate,
            betas=(rate.beta1, rate.beta2),
            eps=rate.epsilon,
            fused=True,
        )
        self._clip_norm = rate.clip_norm
        self._rates = iter(time_to_loss_peer.learning_rates(config).tolist())

    def train(self, batch: pipeline.Batch) -> None:
        self.step(inputs(batch))

    def step(self, batch: dict[str, Any]) -> None:
        """Takes a training step on the result of `inputs`."""
        import torch

        rate = next(self._rates)
        for group in self._adamw.param_groups:
            group["lr"] = rate
        self.model(**batch).loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), self._clip_norm)
        self._adamw.step()
        self._adamw.zero_grad()

    def save(self, directory: Path) -> None:
        self.model.save_pretrained(directory)


def inputs(batch: pipeline.Batch) -> dict[str, Any]:
    """Returns a batch of rows of one pair as the arguments of BertForPreTraining."""
    import torch

    labels = np.full_like(batch["input_ids"], -100)
    row, slot = np.nonzero(batch["masked_lm_weights"])
    positions = batch["masked_lm_positions"][row, slot]
    labels[row, positions] = batch["masked_lm_ids"][row, slot]
    arrays = {
        "input_ids": batch["input_ids"],
        "token_type_ids": batch["segment_ids"],
        "attention_mask": batch["sequence_ids"],
        "labels": labels,
        "next_sentence_label": batch["next_sentence_labels"][:, 0],
    }
    return {name: torch.tensor(x, dtype=torch.long) for name, x in arrays.items()}


def read(directory: Path, run: run_lib.OpenedRun) -> Any:
    """Returns the weights of a saved model as parameters of an opened run."""
    arrays = time_to_loss_peer.read_arrays(directory, run.config)
    return parameters.place(run.params, arrays)


def builders(
    config: ExperimentConfig, batch: pipeline.Batch, start: Path
) -> dict[str, Callable[[], Callable[[], None]]]:
    """Returns builders for `rows.alternate`, with 1, 2, 4, ... threads."""
    counts = [2**i for i in range((os.cpu_count() or 1).bit_length())]
    return {
        f"torch, {count} threads": functools.partial(
            make_step, config, batch, start, count
        )
        for count in counts
    }


def make_step(
    config: ExperimentConfig, batch: pipeline.Batch, start: Path, num_threads: int
) -> Callable[[], None]:
    import torch

    torch.set_num_threads(num_threads)
    trainer = Trainer(config, start)
    return functools.partial(trainer.step, inputs(batch))
