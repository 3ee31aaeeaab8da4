"""Tokens of one text or two -> the rows that the encoder reads.

Tokens are kept once, end to end; a row is where its two texts stand among them, and its
arrays are made when a batch asks for them. So a set of any size takes the memory of its
text, and whatever is known of tokens (a tag, a place) is gathered like their ids.

Shapes: N row of the set, B row of the batch, T token.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from bert_jax.data.batches import row_layout
from bert_jax.data.batches.row_layout import Layout
from bert_jax.data.tokenizers.tokenizers import CLS, PAD, SEP, UNK, Tokenizer

SHORTEST_ROW = 16


def row_length(num_tokens: int, longest: int) -> int:
    """Returns 16, 32, 64, ..., the first that holds the tokens, or `longest`.

    So there are programs for a few lengths, and few places without a token.
    """
    length = SHORTEST_ROW
    while length < num_tokens:
        length *= 2
    return min(length, longest)


@dataclasses.dataclass(frozen=True)
class Tokens:
    """Tokens of many texts end to end, after those that row_layout.py asks for first.

    Attributes:
      ids: int32.
      starts: int64, where each text begins among them.
      lengths: int64, of each text.
    """

    ids: np.ndarray
    starts: np.ndarray
    lengths: np.ndarray


def join(texts: Sequence[np.ndarray], tokenizer: Tokenizer, length: int) -> Tokens:
    """Lays texts end to end, for rows of `length` tokens."""
    first = np.full(row_layout.PAD + length, tokenizer.id(PAD), np.int32)
    first[row_layout.CLS] = tokenizer.id(CLS)
    first[row_layout.SEP] = tokenizer.id(SEP)
    lengths = np.array([len(text) for text in texts], np.int64)
    ids = np.concatenate([first, *texts]).astype(np.int32, copy=False)
    return Tokens(ids, len(first) + np.cumsum(lengths) - lengths, lengths)


def aligned(values: Sequence[np.ndarray], tokens: Tokens, elsewhere: int) -> np.ndarray:
    """Returns a value for each of the tokens, given those of each text.

    Args:
      values: of one dtype, each as long as its text.
      tokens: of those texts.
      elsewhere: the value of special tokens.
    """
    found = np.full(len(tokens.ids), elsewhere, np.int32)
    found[len(tokens.ids) - tokens.lengths.sum() :] = np.concatenate(values)
    return found


@dataclasses.dataclass(frozen=True)
class Rows:
    """Rows of [CLS] A [SEP] or [CLS] A [SEP] B [SEP].

    Attributes:
      ids: `Tokens.ids`.
      pairs_N4: int64, the starts and lengths of A and B: A's start, A's length, B's
        start, B's length. No row is longer than `length`, and every one has an A.
      length: T.
    """

    ids: np.ndarray
    pairs_N4: np.ndarray
    length: int

    def __len__(self) -> int:
        return len(self.pairs_N4)

    def num_tokens(self, rows: np.ndarray | slice = slice(None)) -> np.ndarray:
        """Returns int64, the tokens of some rows, or of all: also [CLS] and [SEP]."""
        a, b = self.pairs_N4[rows, 1], self.pairs_N4[rows, 3]
        return a + b + 2 + (b > 0)

    def cut(self, rows_B: np.ndarray) -> "Rows":
        """Returns rows no longer than some of them need, see `row_length`."""
        longest = int(self.num_tokens(rows_B).max())
        return dataclasses.replace(self, length=row_length(longest, self.length))

    def layout(self, rows_B: np.ndarray) -> Layout:
        """Returns where the places of some rows get their tokens from."""
        pairs_B15 = np.zeros((len(rows_B), 1, 5), np.int64)
        pairs_B15[:, 0, :4] = self.pairs_N4[rows_B]
        return row_layout.lay_out(pairs_B15, self.length)

    def arrays(self, layout: Layout) -> dict[str, np.ndarray]:
        """Returns int32[B, T] of what `Bert.encode` reads."""
        return {
            "input_ids": self.ids[layout.source_BT],
            "segment_ids": layout.segment_ids_BT,
            "position_ids": layout.position_ids_BT,
            "sequence_ids": layout.sequence_ids_BT,
        }


def of_pairs(
    tokens: Tokens, a_N: np.ndarray, b_N: np.ndarray, length: int
) -> tuple[Rows, int]:
    """Returns a row for each text or pair, the longer cut first, and how many were cut.

    Args:
      tokens: of all texts.
      a_N: int, the first text of each row.
      b_N: int, the second, or -1 for none.
      length: T.
    """
    a_length_N = tokens.lengths[a_N]
    b_length_N = np.where(b_N >= 0, tokens.lengths[b_N], 0)
    # [CLS] and a [SEP] after each text that is there.
    room_N = length - 2 - (b_length_N > 0)
    kept = truncate_longest(a_length_N, b_length_N, room_N)
    pairs = (tokens.starts[a_N], kept[0], tokens.starts[b_N], kept[1])
    num_truncated = int((a_length_N + b_length_N > room_N).sum())
    return Rows(tokens.ids, np.stack(pairs, axis=1), length), num_truncated


def truncate_longest(
    a_N: np.ndarray, b_N: np.ndarray, max_num_tokens: int | np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the lengths of pairs after tokens of the longer went, one by one.

    Of texts as long as each other the second loses one.

    Source: google-research/bert run_classifier.py, _truncate_seq_pair.
    """
    excess_N = np.maximum(a_N + b_N - max_num_tokens, 0)
    apart_N = np.minimum(np.abs(a_N - b_N), excess_N)  # what the longer loses first
    rest_N = excess_N - apart_N
    a_is_longer_N = a_N > b_N
    return (
        a_N - np.where(a_is_longer_N, apart_N, 0) - rest_N // 2,
        b_N - np.where(a_is_longer_N, 0, apart_N) - (rest_N + 1) // 2,
    )


def weights(rows_B: np.ndarray) -> np.ndarray:
    """Returns float32[B], 0 where a row is -1, which fills a batch up."""
    return (rows_B >= 0).astype(np.float32)


def encode_texts(texts: Sequence[str], tokenizer: Tokenizer) -> list[np.ndarray]:
    """Returns the ids of texts; of one without a token [UNK], for rows need an A."""
    unk = np.array([tokenizer.id(UNK)], np.int32)
    return [ids if len(ids) else unk for ids in tokenizer.encoder()(list(texts))]
