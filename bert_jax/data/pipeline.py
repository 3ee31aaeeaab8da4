"""Corpus -> batches: the batch of any step is a function of (corpus, config, step).

The corpus is read as config.data.num_streams streams. A stream owns some shards and
visits them in an order of its own, drawn anew each epoch; a visit draws the shard's
pairs, shuffles them, and gives a number of rows known beforehand, so any position is
found by arithmetic. Each step takes the same number of rows from every stream. Hosts
serve whole streams: how many hosts there are changes who reads a row, not which.

Python runs once a visit (drawing pairs); gathering, masking and batching are tf.data.

Shapes: B row of the batch, T token, P masked position, K sentence pair in a row.
"""

import dataclasses
import os
from collections.abc import Iterator
from typing import Any

import numpy as np

from bert_jax.config import ExperimentConfig, PhaseConfig
from bert_jax.data import masking, pairs, tokenizers
from bert_jax.data.corpus import Corpus, Shard
from bert_jax.data.masking import Tensor
from bert_jax.data.quiet_tensorflow import tf

Batch = dict[str, np.ndarray]

# Rows assembled by one call of `_assemble`: enough to hide the cost of a TensorFlow
# operation, few enough to stay in a core's cache.
CHUNK_ROWS = 512

SPECIAL_FIRST = (tokenizers.PAD, tokenizers.CLS, tokenizers.SEP)

# What a random draw is for: part of every key, so that no two draws share a stream.
_PAIRS, _SHUFFLE, _ORDER, _ROWS = range(4)
_SPLIT_KEYS = {"train": 0, "validation": 1}


@dataclasses.dataclass(frozen=True)
class Stream:
    """One of the fixed number of readers of a split.

    Attributes:
      index: which one, from 0.
      shards: those it visits, with their index in the split.
      rows: of one visit to each of them.
      key: part of the key of every draw: seed, split and phase.
    """

    index: int
    shards: tuple[tuple[int, Shard], ...]
    rows: tuple[int, ...]
    key: tuple[int, ...]

    def order(self, epoch: int) -> np.ndarray:
        """Returns the order in which an epoch visits the shards."""
        random = pairs.CounterRandom(_ORDER, *self.key, epoch, self.index)
        return np.argsort(random.words(len(self.shards)), kind="stable")

    def visits(self, first_row: int) -> Iterator[tuple[int, int, int]]:
        """Yields (epoch, index into shards, first row of that visit) from a row on."""
        epoch, row = divmod(first_row, sum(self.rows))
        while True:
            for i in self.order(epoch):
                if row < self.rows[i]:
                    yield epoch, int(i), row
                row = max(0, row - self.rows[i])
            epoch += 1


def make_streams(
    corpus: Corpus, config: ExperimentConfig, split: str, seed: int, phase_index: int
) -> list[Stream]:
    """Deals the shards of a split to its streams: num_streams, or 1 for validation."""
    num_streams = config.data.num_streams if split == "train" else 1
    shards = list(enumerate(corpus.shards[split]))
    length = config.phases[phase_index].sequence_length
    return [
        Stream(
            index=i,
            shards=tuple(shards[i::num_streams]),
            rows=tuple(
                shard.rows_per_epoch(length, config.data.short_seq_prob)
                for _, shard in shards[i::num_streams]
            ),
            key=(seed, _SPLIT_KEYS[split], phase_index),
        )
        for i in range(num_streams)
    ]


def batches(
    corpus: Corpus,
    config: ExperimentConfig,
    *,
    split: str,
    seed: int,
    phase_index: int,
    first_step: int,
    host: int = 0,
    num_hosts: int = 1,
) -> Iterator[Batch]:
    """Yields this host's rows of every step of a phase from `first_step` on, for ever.

    The rows of hosts 0, 1, ... one after the other are the global batch.

    Args:
      corpus: opened by `corpus.read`.
      config: of the run.
      split: "train", of which each host reads its own streams, or "validation", a
        small split of which every host reads all and keeps its rows.
      seed: of pairs, order and masks.
      phase_index: of config.phases; a phase starts an epoch of its own.
      first_step: of the phase, from 0.
      host: this host, of num_hosts, which divides config.data.num_streams.

    Returns:
      Batches of int32 and float32 arrays: [B, T] input_ids, segment_ids, position_ids,
      sequence_ids; [B, P] masked_lm_positions, masked_lm_ids, masked_lm_weights;
      [B, K] next_sentence_positions, next_sentence_labels, next_sentence_weights.
    """
    phase = config.phases[phase_index]
    streams = make_streams(corpus, config, split, seed, phase_index)
    rows_per_step = phase.global_batch_size // len(streams)
    mine = range(len(streams))
    if split == "train":
        per_host = len(streams) // num_hosts
        mine = mine[host * per_host : (host + 1) * per_host]
    first_row = first_step * rows_per_step

    def visits(index: int) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        for epoch, i, row in streams[index].visits(first_row):
            yield _visit(corpus, config, phase, streams[index], epoch, i, row)

    assemble = _Assembler(corpus.tokenizer, config, phase)
    token_dtype = tf.uint16 if len(corpus.tokenizer.vocab) <= 2**16 else tf.uint32

    def stream_dataset(index: Tensor) -> tf.data.Dataset:
        dataset: Any = tf.data.Dataset.from_generator(
            visits,
            args=(index,),
            output_signature=(
                tf.TensorSpec([None], token_dtype),
                tf.TensorSpec([None, 5], tf.int32),
                tf.TensorSpec([None, 2], tf.uint32),
            ),
        )
        return dataset.prefetch(1).flat_map(chunks).rebatch(rows_per_step)

    # Chunks of a stream that are made at once: together the streams use every core.
    num_parallel = max(2, -(-(os.cpu_count() or 1) // len(mine)))

    def chunks(tokens: Tensor, rows: Tensor, keys: Tensor) -> tf.data.Dataset:
        starts = tf.data.Dataset.range(0, tf.shape(rows, tf.int64)[0], CHUNK_ROWS)
        return starts.map(
            lambda i: assemble(
                tokens, rows[i : i + CHUNK_ROWS], keys[i : i + CHUNK_ROWS]
            ),
            num_parallel_calls=num_parallel,
        )

    # A step is one round through the streams, one element of each.
    dataset: Any = tf.data.Dataset.range(mine.start, mine.stop).interleave(
        stream_dataset, cycle_length=len(mine), block_length=1
    )
    dataset = dataset.rebatch(rows_per_step * len(mine)).prefetch(2)
    options = tf.data.Options()
    # Its thread sleeps for up to a minute at a time and cannot be woken to end (seen
    # with TensorFlow 2.21): a run would wait for it after its last step.
    options.autotune.enabled = False
    dataset = dataset.with_options(options)
    if split == "train":
        return dataset.as_numpy_iterator()
    size = phase.global_batch_size // num_hosts
    keep = slice(host * size, (host + 1) * size)
    return (
        {name: rows[keep] for name, rows in batch.items()}
        for batch in dataset.as_numpy_iterator()
    )


def _visit(
    corpus: Corpus,
    config: ExperimentConfig,
    phase: PhaseConfig,
    stream: Stream,
    epoch: int,
    index: int,
    first_row: int,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Draws and shuffles a visit's pairs.

    Returns:
      The ids of SPECIAL_FIRST and then the shard's tokens, int32[rows, 5] (A start,
      A length, B start, B length, is_random) and uint32[rows, 2] mask keys, from
      `first_row` of the visit on.
    """
    shard_index, shard = stream.shards[index]
    num_rows = stream.rows[index]
    tokens, documents = corpus.load(shard)
    # What `_Assembler` puts between the segments, so that one gather fetches a row.
    special = [corpus.tokenizer.id(token) for token in SPECIAL_FIRST]
    tokens = np.concatenate([np.array(special, tokens.dtype), tokens])
    key = (*stream.key, epoch, shard_index)
    drawn: list[pairs.Pairs] = []
    while sum(map(len, drawn)) < num_rows:
        random = pairs.CounterRandom(_PAIRS, *key, len(drawn))
        drawn.append(
            pairs.draw_pairs(
                documents, phase.sequence_length, config.data.short_seq_prob, random
            )
        )
    columns = np.concatenate(
        [
            np.stack([p.a_start, p.a_length, p.b_start, p.b_length, p.is_random], 1)
            for p in drawn
        ]
    ).astype(np.int32)
    # Every pair of the passes before the last, and of that one as many as are missing.
    random = pairs.CounterRandom(_SHUFFLE, *key)
    num_full = len(columns) - len(drawn[-1])
    last = num_full + np.argsort(random.words(len(drawn[-1])), kind="stable")
    chosen = np.concatenate([np.arange(num_full), last[: num_rows - num_full]])
    chosen = chosen[np.argsort(random.words(num_rows), kind="stable")]
    keys = pairs.CounterRandom(_ROWS, *key).words(num_rows)
    keys = keys.view(np.uint32).reshape(-1, 2)
    return tokens, columns[chosen][first_row:], keys[first_row:]


class _Assembler:
    """Turns slices of a shard's tokens into masked rows, a chunk at a time."""

    def __init__(
        self,
        tokenizer: tokenizers.Tokenizer,
        config: ExperimentConfig,
        phase: PhaseConfig,
    ):
        self.length = phase.sequence_length
        self.max_predictions = phase.max_predictions
        self.num_to_predict = masking.num_to_predict_table(
            phase.sequence_length, phase.max_predictions, config.data.masked_lm_prob
        )
        self.mask_id = tokenizer.id(tokenizers.MASK)
        self.vocab_size = len(tokenizer.vocab)

    def __call__(
        self, tokens: Tensor, rows: Tensor, keys_B2: Tensor
    ) -> dict[str, Tensor]:
        """Returns a chunk of the batch described in `batches`."""
        a_start, a_length, b_start, b_length, is_random = tf.unstack(
            rows[:, :, None], num=5, axis=1
        )
        position_T = tf.range(self.length)[None]
        first_sep = 1 + a_length
        last_sep = first_sep + 1 + b_length
        in_a_BT = (position_T >= 1) & (position_T < first_sep)
        in_b_BT = (position_T > first_sep) & (position_T < last_sep)
        real_BT = position_T <= last_sep
        pad, cls, sep = range(len(SPECIAL_FIRST))
        num_special = len(SPECIAL_FIRST)
        source_BT = tf.where(
            in_a_BT,
            a_start + (position_T - 1) + num_special,
            tf.where(
                in_b_BT,
                b_start + (position_T - first_sep - 1) + num_special,
                tf.where(real_BT, tf.where(position_T == 0, cls, sep), pad),
            ),
        )
        ids_BT = tf.cast(tf.gather(tokens, source_BT), tf.int32)
        input_ids_BT, positions_BP, ids_BP, weights_BP = masking.mask_rows(
            ids_BT,
            in_a_BT | in_b_BT,
            tf.gather(self.num_to_predict, last_sep[:, 0] + 1),
            keys_B2,
            max_predictions=self.max_predictions,
            mask_id=self.mask_id,
            vocab_size=self.vocab_size,
        )
        shape = tf.shape(ids_BT)
        return {
            "input_ids": input_ids_BT,
            "segment_ids": tf.cast((position_T > first_sep) & real_BT, tf.int32),
            "position_ids": tf.broadcast_to(position_T, shape),
            "sequence_ids": tf.cast(real_BT, tf.int32),
            "masked_lm_positions": positions_BP,
            "masked_lm_ids": ids_BP,
            "masked_lm_weights": weights_BP,
            "next_sentence_positions": tf.zeros_like(is_random),
            "next_sentence_labels": is_random,
            "next_sentence_weights": tf.ones_like(is_random, tf.float32),
        }
