"""Lays out rows of pairs, and makes encoder inputs of one text or of two.

The tokens of all texts are stored once, concatenated. A row stores only the positions
of its two texts; its arrays are built when a batch needs them. A set therefore takes
little more memory than its tokens, and other values per token (tags, offsets) are
gathered in the same way.

Shapes: N row of the set, B row of the batch, T token, K pair in a row, 6 piece of a
pair.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from bert_jax.data.batches.pairs import truncate_longest
from bert_jax.data.tokenizers.base import CLS, PAD, SEP, Tokenizer

# The indices of `special_ids`.
_CLS, _SEP, _PAD = range(3)


def special_ids(tokenizer: Tokenizer, length: int) -> np.ndarray:
    """Returns the ids of [CLS], [SEP] and a row of [PAD], as int32.

    They precede all other tokens, so that a single gather fetches whole rows.
    """
    cls, sep, pad = (tokenizer.id(token) for token in (CLS, SEP, PAD))
    return np.array([cls, sep, *[pad] * length], np.int32)


@dataclasses.dataclass(frozen=True)
class Layout:
    """The layout of rows, before tokens are fetched."""

    source_BT: np.ndarray  # int64, index of each token in `Visit.tokens`
    segment_ids_BT: np.ndarray  # int32, as in the batch
    position_ids_BT: np.ndarray  # int32, as in the batch
    sequence_ids_BT: np.ndarray  # int32, as in the batch
    candidates_BT: np.ndarray  # uint8, sequence_ids of text tokens, 0 for all others
    first_BK: np.ndarray  # int32, position of [CLS], 0 if there is no pair
    lengths_BK: np.ndarray  # int64, number of tokens

    def inputs(self, ids_BT: np.ndarray) -> dict[str, np.ndarray]:
        """Returns the inputs of `Bert.states`, int32[B, T]."""
        return {
            "input_ids": ids_BT,
            "segment_ids": self.segment_ids_BT,
            "position_ids": self.position_ids_BT,
            "sequence_ids": self.sequence_ids_BT,
        }


# Flags of the pieces of a pair: [CLS] A [SEP] B [SEP], and padding after the last pair.
_IS_B, _IS_TEXT, _IS_PADDING = 1, 2, 4
_PIECES = (0, _IS_TEXT, 0, _IS_B | _IS_TEXT, _IS_B, _IS_PADDING)


def lay_out(pairs_BK5: np.ndarray, length: int) -> Layout:
    """Lays out the pairs of `Visit` of each row consecutively, then padding to T."""
    B, K, _ = pairs_BK5.shape
    a_start, a_length, b_start, b_length, _ = pairs_BK5.transpose(2, 0, 1)
    sizes_BK6 = np.zeros((B, K, 6), np.int64)
    is_pair_BK = a_start > 0  # no text starts at 0, where [CLS] is; A may be empty
    sizes_BK6[:, :, 0] = sizes_BK6[:, :, 2] = is_pair_BK
    sizes_BK6[:, :, 1], sizes_BK6[:, :, 3] = a_length, b_length
    sizes_BK6[:, :, 4] = b_length > 0
    lengths_BK = sizes_BK6.sum(axis=2)
    sizes_BK6[:, -1, 5] = length - lengths_BK.sum(axis=1)
    sizes, sizes_B_6K = sizes_BK6.ravel(), sizes_BK6.reshape(B, 6 * K)
    source_BK6 = np.empty_like(sizes_BK6)
    source_BK6[:, :, 0], source_BK6[:, :, 5] = _CLS, _PAD
    source_BK6[:, :, 2] = source_BK6[:, :, 4] = _SEP
    source_BK6[:, :, 1], source_BK6[:, :, 3] = a_start, b_start

    # Adding the position to this gives the index of its token.
    starts_BK6 = np.cumsum(sizes_B_6K, axis=1) - sizes_B_6K
    source = source_BK6.ravel() - starts_BK6.ravel()
    source_BT = np.repeat(source, sizes).reshape(B, length)
    place_T = np.arange(length)
    source_BT += place_T
    # For every position: a byte with the pair and the flags of the piece, from which
    # all other arrays are computed.
    pieces_K6 = (np.arange(0, 8 * K, 8)[:, None] + np.array(_PIECES)).astype(np.uint8)
    pieces = np.broadcast_to(pieces_K6, (B, K, 6)).ravel()
    piece_BT = np.repeat(pieces, sizes).reshape(B, length)
    pair_BT = (piece_BT >> 3) + np.uint8(1)
    is_real_BT = piece_BT & _IS_PADDING == 0
    first_BK = starts_BK6.reshape(B, K, 6)[:, :, 0]
    spans = sizes_BK6.sum(axis=2).ravel()
    firsts_BT = np.repeat(first_BK.astype(np.int32).ravel(), spans).reshape(B, length)
    position_ids_BT = place_T.astype(np.int32) - firsts_BT
    return Layout(
        source_BT=source_BT,
        segment_ids_BT=(piece_BT & _IS_B).astype(np.int32),
        position_ids_BT=position_ids_BT,
        sequence_ids_BT=(pair_BT * is_real_BT).astype(np.int32),
        candidates_BT=pair_BT * (piece_BT & _IS_TEXT != 0),
        first_BK=np.where(is_pair_BK, first_BK, 0).astype(np.int32),
        lengths_BK=lengths_BK,
    )


# --------------------------------------------------------- rows of one text or of two

SHORTEST_ROW = 16


@dataclasses.dataclass(frozen=True)
class Tokens:
    """Concatenated tokens of texts, after the special tokens of a row."""

    ids: np.ndarray  # int32
    starts: np.ndarray  # int64, index of the first token of each text
    lengths: np.ndarray  # int64, number of tokens of each text


def join(texts: Sequence[np.ndarray], tokenizer: Tokenizer, length: int) -> Tokens:
    """Concatenates texts, for rows of `length` tokens."""
    first = special_ids(tokenizer, length)
    lengths = np.array([len(text) for text in texts], np.int64)
    ids = np.concatenate([first, *texts]).astype(np.int32, copy=False)
    return Tokens(ids, len(first) + np.cumsum(lengths) - lengths, lengths)


def aligned(values: Sequence[np.ndarray], tokens: Tokens, elsewhere: int) -> np.ndarray:
    """Returns int32, the values of the last texts at their ids; else `elsewhere`."""
    found = np.concatenate(values).astype(np.int32, copy=False)
    return np.pad(found, (len(tokens.ids) - len(found), 0), constant_values=elsewhere)


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
        """Returns these rows with the smallest of 16, 32, 64, ... that fits a batch.

        Few distinct lengths need few compiled programs, and rows have little padding.
        """
        longest = int(self.num_tokens(rows_B).max())
        fitting = max(SHORTEST_ROW, 1 << (longest - 1).bit_length())
        return dataclasses.replace(self, length=min(fitting, self.length))

    def layout(self, rows_B: np.ndarray) -> Layout:
        pairs_B15 = np.zeros((len(rows_B), 1, 5), np.int64)
        pairs_B15[:, 0, :4] = self.pairs_N4[rows_B]
        return lay_out(pairs_B15, self.length)

    def arrays(self, layout: Layout) -> dict[str, np.ndarray]:
        return layout.inputs(self.ids[layout.source_BT])


def of_pairs(
    tokens: Tokens, a_N: np.ndarray, b_N: np.ndarray | int, length: int
) -> tuple[Rows, int]:
    """Lays out each text or pair as a row, which `truncate_longest` shortens to fit.

    a_N and b_N are the indices of the texts of each row; b_N is -1 if there is no
    second one. Also returns the number of truncated rows.
    """
    b_N = np.broadcast_to(b_N, a_N.shape)
    a_length_N = tokens.lengths[a_N]
    b_length_N = np.where(b_N >= 0, tokens.lengths[b_N], 0)
    # [CLS], and [SEP] after each text.
    room_N = length - 2 - (b_length_N > 0)
    kept = truncate_longest(a_length_N, b_length_N, room_N)
    pairs = (tokens.starts[a_N], kept[0], tokens.starts[b_N], kept[1])
    num_truncated = int((a_length_N + b_length_N > room_N).sum())
    return Rows(tokens.ids, np.stack(pairs, axis=1), length), num_truncated
