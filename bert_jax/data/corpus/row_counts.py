"""The number of rows per visit to a shard: the mean of a random pass over it.

For several row lengths, `prepare` draws two passes over each shard: one with the
longest target lengths only, and one with short target lengths only. Their row counts
are stored in the manifest. The mean of a pass with config.data.short_seq_prob is
interpolated between them.

Shapes: O objective, L row length, K pairs in a row, 2 longest and short targets,
S shard.
"""

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from bert_jax.config import DataConfig, PhaseConfig
from bert_jax.data.batches import pairs

# The row lengths and numbers of pairs in a row for which rows are counted.
LENGTHS = (8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
PER_ROW = (1, 2, 4, 8, 32)
OBJECTIVES = ("next_sentence", "masked_lm_only")
# The number of sentences that are drawn at a time; a draw takes about 200 bytes each.
COUNTED_SENTENCES = 2**17
# The number of passes that are averaged over a shard with fewer sentences: the rows of
# one pass over few documents may differ from the mean by several percent.
MAX_PASSES = 2

Counts = list[list[list[list[int]]]]  # int[O, L, K, 2]


def objective(data: DataConfig) -> str:
    return OBJECTIVES[0] if data.next_sentence else OBJECTIVES[1]


def count(documents: pairs.Documents) -> Counts:
    """Counts the mean rows of passes over a shard, for each objective and length."""
    # With the same key for all shards, their errors would have the same sign. Token ids
    # are not hashed, because row counts do not depend on them.
    digest = hashlib.sha256()
    for offsets in (documents.token_offsets, documents.sentence_offsets):
        digest.update(offsets.astype("<i8").tobytes())
    key = int.from_bytes(digest.digest()[:8], "little")
    return [
        [_count(documents, name, length, key) for length in LENGTHS]
        for name in OBJECTIVES
    ]


def _count(
    documents: pairs.Documents, name: str, length: int, key: int
) -> list[list[int]]:
    draw = pairs.draw_pairs if name == OBJECTIVES[0] else pairs.draw_segments
    num_sentences = int(documents.sentence_offsets[-1])
    num_passes = max(1, min(MAX_PASSES, COUNTED_SENTENCES // num_sentences))
    rows_K2 = np.zeros((len(PER_ROW), 2))
    for number in range(num_passes):
        for is_short in (0, 1):
            drawn = []
            for i, part in enumerate(_parts(documents)):
                random = pairs.CounterRandom(key, length, is_short, number, i)
                drawn.append(draw(part, length, float(is_short), random).lengths)
            lengths = np.concatenate(drawn)
            rows_K2[:, is_short] += [
                pairs.num_rows(lengths, length, k) for k in PER_ROW
            ]
    return np.rint(rows_K2 / num_passes).astype(int).tolist()


def _parts(documents: pairs.Documents) -> Iterator[pairs.Documents]:
    """Yields parts of about COUNTED_SENTENCES sentences each."""
    ends = documents.sentence_offsets
    num_parts = max(1, round(int(ends[-1]) / COUNTED_SENTENCES))
    wanted = np.linspace(0, ends[-1], num_parts + 1)
    # Next to a very long document, a part may be empty.
    bounds = np.unique(np.searchsorted(ends, wanted)).tolist()
    for start, stop in zip(bounds[:-1], bounds[1:], strict=True):
        yield documents.slice(start, stop)


def to_columns(shards: Sequence[Counts]) -> dict[str, Any]:
    """Returns lists of S rows, by objective, row length, pairs in a row and target."""
    shape = len(shards), len(OBJECTIVES), len(LENGTHS), len(PER_ROW), 2
    rows_OLK2S = np.moveaxis(np.array(shards, int).reshape(shape), 0, -1).tolist()
    return {
        name: {
            str(length): dict(zip(map(str, PER_ROW), rows_K2S, strict=True))
            for length, rows_K2S in zip(LENGTHS, rows_LK2S, strict=True)
        }
        for name, rows_LK2S in zip(OBJECTIVES, rows_OLK2S, strict=True)
    }


def from_columns(columns: dict[str, Any], name: str) -> np.ndarray:
    """Returns the rows of one objective in `to_columns`, int64[L, K, 2, S]."""
    return np.array(
        [[columns[name][str(length)][str(k)] for k in PER_ROW] for length in LENGTHS]
    )


def expected_rows(
    rows_LK2S: np.ndarray, data: DataConfig, phase: PhaseConfig
) -> list[int]:
    """Returns the mean number of rows of a pass over each shard, at least 1.

    Logarithms are interpolated linearly between the row lengths and pairs in a row of
    the manifest, and extrapolated beyond the longest: the number of rows follows a
    power law if documents are much longer or much shorter than rows.
    """
    logs_LK2S = np.log(np.maximum(rows_LK2S, 1))
    logs_K2S = _interpolate(phase.sequence_length, LENGTHS, logs_LK2S)
    logs_2S = _interpolate(phase.max_sequences_per_row, PER_ROW, logs_K2S)
    longest_S, short_S = np.exp(logs_2S)
    p = data.short_seq_prob
    # Rounding to 3 digits first makes the result the same on all machines: the last
    # bits of exp and log differ, so halves could be rounded up or down.
    rows_S = np.round(np.round((1 - p) * longest_S + p * short_S, 3))
    return np.maximum(rows_S, 1).astype(int).tolist()


def _interpolate(x: float, known: Sequence[int], values: np.ndarray) -> np.ndarray:
    """Interpolates along the first axis, linearly in log x; extrapolates at the end."""
    i = int(np.clip(np.searchsorted(known, x, side="right") - 1, 0, len(known) - 2))
    weight = np.log(x / known[i]) / np.log(known[i + 1] / known[i])
    return (1 - weight) * values[i] + weight * values[i + 1]
