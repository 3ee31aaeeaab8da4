"""Encoder input rows of one text or of a pair of texts.

The tokens of all texts are stored once, concatenated. A row stores only the positions
of its two texts; its arrays are built when a batch needs them. A set therefore takes
little more memory than its tokens, and other values per token (tags, offsets) are
gathered in the same way.

Shapes: N row of the set, B row of the batch, T token.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from bert_jax.data.batches import row_layout
from bert_jax.data.batches.pairs import truncate_longest
from bert_jax.data.batches.row_layout import Layout
from bert_jax.data.tokenizers.tokenizers import CLS, PAD, SEP, Tokenizer

SHORTEST_ROW = 16


def row_length(num_tokens: int, longest: int) -> int:
    """Returns the smallest of 16, 32, 64, ... that fits the tokens, at most `longest`.

    Few distinct lengths need few compiled programs, and rows have little padding.
    """
    length = SHORTEST_ROW
    while length < num_tokens:
        length *= 2
    return min(length, longest)


@dataclasses.dataclass(frozen=True)
class Tokens:
    """Concatenated tokens of texts, after the special tokens of row_layout.py."""

    ids: np.ndarray  # int32
    starts: np.ndarray  # int64, index of the first token of each text
    lengths: np.ndarray  # int64, number of tokens of each text


def join(texts: Sequence[np.ndarray], tokenizer: Tokenizer, length: int) -> Tokens:
    """Concatenates texts, for rows of `length` tokens."""
    first = np.full(row_layout.PAD + length, tokenizer.id(PAD), np.int32)
    first[row_layout.CLS] = tokenizer.id(CLS)
    first[row_layout.SEP] = tokenizer.id(SEP)
    lengths = np.array([len(text) for text in texts], np.int64)
    ids = np.concatenate([first, *texts]).astype(np.int32, copy=False)
    return Tokens(ids, len(first) + np.cumsum(lengths) - lengths, lengths)


def aligned(values: Sequence[np.ndarray], tokens: Tokens, elsewhere: int) -> np.ndarray:
    """Returns the values of all texts, aligned with `tokens.ids`; else `elsewhere`."""
    found = np.full(len(tokens.ids), elsewhere, np.int32)
    found[len(tokens.ids) - tokens.lengths.sum() :] = np.concatenate(values)
    return found


@dataclasses.dataclass(frozen=True)
class Rows:
    """Rows of [CLS] A [SEP] or [CLS] A [SEP] B [SEP], none longer than `length`."""

    ids: np.ndarray  # int32, see `Tokens`
    # int64, A start, A length, B start, B length; an A of length 0 is an empty text.
    pairs_N4: np.ndarray
    length: int  # T

    def __len__(self) -> int:
        return len(self.pairs_N4)

    def num_tokens(self, rows: np.ndarray | slice = slice(None)) -> np.ndarray:
        """Returns int64, number of tokens of some rows, with [CLS] and [SEP]."""
        a, b = self.pairs_N4[rows, 1], self.pairs_N4[rows, 3]
        return a + b + 2 + (b > 0)

    def cut(self, rows_B: np.ndarray) -> "Rows":
        """Returns these rows with the `row_length` that the rows of a batch need."""
        longest = int(self.num_tokens(rows_B).max())
        return dataclasses.replace(self, length=row_length(longest, self.length))

    def layout(self, rows_B: np.ndarray) -> Layout:
        pairs_B15 = np.zeros((len(rows_B), 1, 5), np.int64)
        pairs_B15[:, 0, :4] = self.pairs_N4[rows_B]
        return row_layout.lay_out(pairs_B15, self.length)

    def arrays(self, layout: Layout) -> dict[str, np.ndarray]:
        """Returns the inputs of `Bert.states`, int32[B, T]."""
        return {
            "input_ids": self.ids[layout.source_BT],
            "segment_ids": layout.segment_ids_BT,
            "position_ids": layout.position_ids_BT,
            "sequence_ids": layout.sequence_ids_BT,
        }


def of_pairs(
    tokens: Tokens, a_N: np.ndarray, b_N: np.ndarray, length: int
) -> tuple[Rows, int]:
    """Makes a row of each text or pair, truncated to `length` by `truncate_longest`.

    a_N and b_N are the indices of the texts of each row; b_N is -1 if there is no
    second one. Also returns the number of truncated rows.
    """
    a_length_N = tokens.lengths[a_N]
    b_length_N = np.where(b_N >= 0, tokens.lengths[b_N], 0)
    # [CLS], and [SEP] after each text.
    room_N = length - 2 - (b_length_N > 0)
    kept = truncate_longest(a_length_N, b_length_N, room_N)
    pairs = (tokens.starts[a_N], kept[0], tokens.starts[b_N], kept[1])
    num_truncated = int((a_length_N + b_length_N > room_N).sum())
    return Rows(tokens.ids, np.stack(pairs, axis=1), length), num_truncated


def weights(rows_B: np.ndarray) -> np.ndarray:
    """Returns float32[B], 0 for rows of -1, which pad a batch, and 1 for all others."""
    return (rows_B >= 0).astype(np.float32)
