"""Computes the layout of rows of pairs: the source and the kind of every position.

Shapes: B row of the batch, T token, K sentence pair in a row, 6 piece of a pair.
"""

import dataclasses

import numpy as np

# The tokens of a visit are preceded by [CLS], [SEP] and a row of [PAD], so that a
# single gather fetches whole rows.
CLS, SEP, PAD = range(3)


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
    source_BK6[:, :, 0], source_BK6[:, :, 5] = CLS, PAD
    source_BK6[:, :, 2] = source_BK6[:, :, 4] = SEP
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
