"""A PyTorch training loop around transformers' BertForPreTraining.

A peer of benchmarks.time_to_loss: it starts from the same weights, reads the same
batches, and has the same dropout, learning rates, weight decay and clipping. AdamW is
torch's, with bias correction.
"""

import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import time_to_loss_peer
from bert_jax.config import ExperimentConfig
from bert_jax.data.batches import pipeline

NAME = "transformers BertForPreTraining in a PyTorch loop"
PACKAGE, INSTALL = "torch", "pip install -r requirements-parity.txt"
OPTIONS = tuple(2**i for i in range((os.cpu_count() or 1).bit_length()))  # threads
NOT_DECAYED = ("bias", "LayerNorm.weight")


class Trainer:
    """The model and its optimizer; see time_to_loss_peer.Trainer."""

    def __init__(
        self, config: ExperimentConfig, start: Path, num_threads: int | None = None
    ):
        import torch
        import transformers

        if num_threads:
            torch.set_num_threads(num_threads)
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
        self._config, self._clip_norm = config, rate.clip_norm
        self._rates = time_to_loss_peer.learning_rates(config)

    @staticmethod
    def inputs(batch: pipeline.Batch) -> dict[str, Any]:
        """Converts rows of one pair to the arguments of BertForPreTraining."""
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

    def step(self, batch: dict[str, Any]) -> None:
        import torch

        rate = next(self._rates)
        for group in self._adamw.param_groups:
            group["lr"] = rate
        self.model(**batch).loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), self._clip_norm)
        self._adamw.step()
        self._adamw.zero_grad()

    def weights(self) -> dict[str, np.ndarray]:
        with tempfile.TemporaryDirectory() as directory:
            self.model.save_pretrained(directory)
            return time_to_loss_peer.read_arrays(Path(directory), self._config)
