"""The BERT of "Dive into Deep Learning", chapter 15, as a PyTorch loop.

The differences to BERT are the book's: embeddings without LayerNorm and with its
standard normal weights, ReLU, an untied decoder, pairs of single sentences, masks that
are drawn once, and a masked-LM loss that is a mean over all slots: an unused slot has
position 0 and the unknown word as label.

Shapes: B pairs, T token position, P masked position, D hidden, N heads, H head dim,
V vocabulary.
"""

import dataclasses
import statistics
from collections.abc import Callable, Iterable

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from bert_jax.config import ExperimentConfig
from bert_jax.data.tokenizers import base

HIDDEN, HEADS, LAYERS, FEED_FORWARD, DROPOUT, RATE = 128, 2, 2, 256, 0.2, 0.01
LAST_STEPS = 10
MASKED, REPLACED, RANDOM = 0.15, 0.8, 0.1


@dataclasses.dataclass(frozen=True)
class Pairs:
    """All sentence pairs of a text, with their masks.

    Attributes:
      ids, segments: [pairs, T].
      lengths: [pairs], the numbers of real tokens.
      positions, labels, weights: [pairs, P]; weights are 0 for unused slots.
      is_next: [pairs].
    """

    ids: np.ndarray
    segments: np.ndarray
    lengths: np.ndarray
    positions: np.ndarray
    labels: np.ndarray
    weights: np.ndarray
    is_next: np.ndarray

    def take(self, rows: np.ndarray) -> dict[str, torch.Tensor]:
        fields = dataclasses.asdict(self)
        return {name: torch.from_numpy(array[rows]) for name, array in fields.items()}


def make_pairs(
    paragraphs: list[list[np.ndarray]],
    tokenizer: base.Tokenizer,
    length: int,
    random: np.random.Generator,
) -> Pairs:
    """Pairs each sentence with the next one, or half of the time with a random one."""
    special = {name: tokenizer.id(name) for name in base.SPECIAL_TOKENS}
    max_masks = round(MASKED * length)
    found: list[tuple[np.ndarray, ...]] = []
    for sentences in paragraphs:
        for first, second in zip(sentences, sentences[1:], strict=False):
            is_next = random.random() < 0.5
            if not is_next:
                other = paragraphs[random.integers(len(paragraphs))]
                second = other[random.integers(len(other))]
            if len(first) + len(second) + 3 > length:
                continue
            cls, sep = [special[base.CLS]], [special[base.SEP]]
            ids = np.concatenate([cls, first, sep, second, sep])
            segments = np.arange(len(ids)) >= len(first) + 2
            masked, positions = mask(ids, tokenizer, special, random)
            used = np.arange(max_masks) < len(positions)
            found.append(
                (
                    _padded(masked, length, special[base.PAD]),
                    _padded(segments, length, 0),
                    np.int64(len(ids)),
                    _padded(positions, max_masks, 0),
                    _padded(ids[positions], max_masks, special[base.UNK]),
                    used.astype(np.float32),
                    np.int64(is_next),
                )
            )
    return Pairs(*(np.stack(column) for column in zip(*found, strict=True)))


def mask(
    ids: np.ndarray,
    tokenizer: base.Tokenizer,
    special: dict[str, int],
    random: np.random.Generator,
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the ids with masks, and the masked positions in order."""
    candidates = np.flatnonzero(~np.isin(ids, [special[base.CLS], special[base.SEP]]))
    count = max(1, round(MASKED * len(ids)))
    positions = np.sort(random.permutation(candidates)[:count])
    draws = random.random(len(positions))
    masked = ids.copy()
    masked[positions[draws < REPLACED]] = special[base.MASK]
    changed = positions[(draws >= REPLACED) & (draws < REPLACED + RANDOM)]
    masked[changed] = random.integers(len(tokenizer.vocab), size=len(changed))
    return masked, positions


def _padded(array: np.ndarray, length: int, value: int) -> np.ndarray:
    padding = np.full(length - len(array), value)
    return np.concatenate([array, padding]).astype(np.int64)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(HIDDEN, 3 * HIDDEN), nn.Linear(HIDDEN, HIDDEN)
        self.norms = nn.ModuleList(nn.LayerNorm(HIDDEN) for _ in range(2))
        self.feed_forward = nn.Sequential(
            nn.Linear(HIDDEN, FEED_FORWARD), nn.ReLU(), nn.Linear(FEED_FORWARD, HIDDEN)
        )
        self.dropout = nn.Dropout(DROPOUT)

    def forward(self, x_BTD: torch.Tensor, is_real_BT: torch.Tensor) -> torch.Tensor:
        B, T, D = x_BTD.shape
        qkv = self.qkv(x_BTD).view(B, T, 3, HEADS, D // HEADS).permute(2, 0, 3, 1, 4)
        mixed_BNTH = functional.scaled_dot_product_attention(
            *qkv,
            attn_mask=is_real_BT[:, None, None],
            dropout_p=DROPOUT if self.training else 0.0,
        )
        mixed_BTD = self.out(mixed_BNTH.transpose(1, 2).reshape(B, T, D))
        x_BTD = self.norms[0](x_BTD + self.dropout(mixed_BTD))
        return self.norms[1](x_BTD + self.dropout(self.feed_forward(x_BTD)))


class Bert(nn.Module):
    def __init__(self, vocab_size: int, length: int):
        super().__init__()
        self.tokens = nn.Embedding(vocab_size, HIDDEN)
        self.segments = nn.Embedding(2, HIDDEN)
        self.positions = nn.Parameter(torch.randn(length, HIDDEN))
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.masked_lm = nn.Sequential(
            nn.Linear(HIDDEN, HIDDEN),
            nn.ReLU(),
            nn.LayerNorm(HIDDEN),
            nn.Linear(HIDDEN, vocab_size),
        )
        self.next_sentence = nn.Sequential(
            nn.Linear(HIDDEN, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, 2)
        )

    def forward(
        self, batch: dict[str, torch.Tensor]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns the logits of masked positions [B, P, V] and of pairs [B, 2]."""
        ids_BT = batch["ids"]
        x_BTD = self.tokens(ids_BT) + self.segments(batch["segments"]) + self.positions
        is_real_BT = torch.arange(ids_BT.shape[1]) < batch["lengths"][:, None]
        for layer in self.layers:
            x_BTD = layer(x_BTD, is_real_BT)
        index_BPD = batch["positions"][..., None].expand(-1, -1, HIDDEN)
        masked_BPD = x_BTD.gather(1, index_BPD)
        return self.masked_lm(masked_BPD), self.next_sentence(x_BTD[:, 0])


def losses(
    model: Bert, batch: dict[str, torch.Tensor]
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Returns the loss of the book, and the metrics of the batch."""
    logits_BPV, logits_B2 = model(batch)
    loss_BP = functional.cross_entropy(
        logits_BPV.transpose(1, 2), batch["labels"], reduction="none"
    )
    next_sentence_loss = functional.cross_entropy(logits_B2, batch["is_next"])
    weights_BP = batch["weights"]
    metrics = {
        "masked_lm_loss": (loss_BP * weights_BP).sum() / weights_BP.sum(),
        "loss_with_padding": loss_BP.mean(),
        "next_sentence_loss": next_sentence_loss,
        "next_sentence_accuracy": (logits_B2.argmax(1) == batch["is_next"])
        .float()
        .mean(),
    }
    return loss_BP.mean() + next_sentence_loss, metrics


def train(
    paragraphs: Iterable[list[np.ndarray]],
    tokenizer: base.Tokenizer,
    length: int,
    seed: int,
    batch_size: int,
    num_steps: int,
) -> dict[str, float]:
    """Trains and returns the means of the metrics over all steps.

    The means over the last 10 steps have names that start with last_.
    """
    random = np.random.default_rng(seed)
    torch.manual_seed(seed)
    pairs = make_pairs(list(paragraphs), tokenizer, length, random)
    model = Bert(len(tokenizer.vocab), length)
    adam = torch.optim.Adam(model.parameters(), lr=RATE)
    num_pairs = len(pairs.ids)
    num_epochs = -(-batch_size * num_steps // num_pairs)
    order = np.concatenate([random.permutation(num_pairs) for _ in range(num_epochs)])
    found: list[dict[str, float]] = []
    for step in range(num_steps):
        rows = order[step * batch_size : (step + 1) * batch_size]
        metrics = take_step(model, adam, pairs.take(rows))
        found.append({name: float(x.detach()) for name, x in metrics.items()})
    means = {name: statistics.mean(x[name] for x in found) for name in found[0]}
    last = {
        f"last_{name}": statistics.mean(x[name] for x in found[-LAST_STEPS:])
        for name in found[0]
    }
    return means | last


def take_step(
    model: Bert, adam: torch.optim.Adam, batch: dict[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    loss, metrics = losses(model, batch)
    adam.zero_grad()
    loss.backward()
    adam.step()
    return metrics


def make_step(
    config: ExperimentConfig, batch: dict[str, np.ndarray]
) -> Callable[[], None]:
    """Returns a training step on a batch of bert_jax, for `rows.alternate`."""
    names = {
        "ids": "input_ids",
        "segments": "segment_ids",
        "positions": "masked_lm_positions",
        "labels": "masked_lm_ids",
    }
    tensors = {
        ours: torch.from_numpy(batch[name].astype(np.int64))
        for ours, name in names.items()
    }
    tensors["lengths"] = torch.from_numpy((batch["sequence_ids"] > 0).sum(axis=1))
    tensors["weights"] = torch.from_numpy(batch["masked_lm_weights"])
    labels = batch["next_sentence_labels"][:, 0]
    tensors["is_next"] = torch.from_numpy(labels.astype(np.int64))
    model = Bert(config.tokenizer.vocab_size, batch["input_ids"].shape[1])
    adam = torch.optim.Adam(model.parameters(), lr=RATE)

    def run() -> None:
        take_step(model, adam, tensors)

    return run
