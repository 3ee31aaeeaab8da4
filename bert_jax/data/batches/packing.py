"""Packs several sentence pairs into one row, by best-fit decreasing on their lengths.

Pairs are counted by length, and all pairs of a length are packed at once: the longest
first, into the rows with the least room that suffices. The time therefore depends on
the number of distinct lengths, not on the number of pairs.

Shapes: N pair, R row, K pair of a row.
"""

import collections

import numpy as np


def pack(
    lengths_N: np.ndarray, sequence_length: int, max_sequences_per_row: int
) -> np.ndarray:
    """Packs all pairs, of the given lengths with [CLS] and [SEP], into rows.

    Pairs of the same length are packed in the given order. Returns int64[R, K], the
    indices of the pairs in each row, followed by -1.
    """
    if max_sequences_per_row == 1:
        return np.arange(len(lengths_N))[:, None]
    groups = _fill(_counts(lengths_N), sequence_length, max_sequences_per_row)
    shapes = np.array(
        [
            lengths + (0,) * (max_sequences_per_row - len(lengths))
            for _, lengths in groups
        ]
    ).reshape(-1, max_sequences_per_row)
    lengths_RK = np.repeat(shapes, [count for count, _ in groups], axis=0)
    # The places of each length are filled with the pairs of that length, in order.
    pairs_RK = np.full(lengths_RK.shape, -1)
    places = np.argsort(lengths_RK, axis=None, kind="stable")[-len(lengths_N) :]
    pairs_RK.ravel()[places] = np.argsort(lengths_N, kind="stable")
    return pairs_RK


def num_rows(
    lengths_N: np.ndarray, sequence_length: int, max_sequences_per_row: int
) -> int:
    if max_sequences_per_row == 1:
        return len(lengths_N)
    groups = _fill(_counts(lengths_N), sequence_length, max_sequences_per_row)
    return sum(count for count, _ in groups)


def _counts(lengths_N: np.ndarray) -> dict[int, int]:
    counts = np.bincount(lengths_N)
    found = np.flatnonzero(counts)
    return dict(zip(found.tolist(), counts[found].tolist(), strict=True))


def _fill(
    counts: dict[int, int], sequence_length: int, max_sequences_per_row: int
) -> list[tuple[int, tuple[int, ...]]]:
    """Packs pairs; returns groups of (number of rows, lengths of their pairs)."""
    full: list[tuple[int, tuple[int, ...]]] = []
    by_room: dict[int, list[tuple[int, tuple[int, ...]]]] = collections.defaultdict(
        list
    )
    has_room = 0  # bit r is set if there are rows with room for r tokens

    for length, left in sorted(counts.items(), reverse=True):
        while left:
            fitting = has_room >> length
            if fitting:
                room = length + (fitting & -fitting).bit_length() - 1
                num_rows, lengths = by_room[room].pop()
                taken = min(num_rows, left)
                if taken < num_rows:
                    by_room[room].append((num_rows - taken, lengths))
                if not by_room[room]:
                    has_room &= ~(1 << room)
                lengths, left = (*lengths, length), left - taken
            else:
                room = sequence_length
                many = min(max_sequences_per_row, sequence_length // length, left)
                taken, lengths = left // many, (length,) * many
                left -= taken * many
            room = sequence_length - sum(lengths)
            if len(lengths) == max_sequences_per_row or room == 0:
                full.append((taken, lengths))
            else:
                by_room[room].append((taken, lengths))
                has_room |= 1 << room
    return full + [group for room in sorted(by_room) for group in by_room[room]]
