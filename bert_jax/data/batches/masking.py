"""Selects the masked tokens of a row and their replacements.

Masks are a hash of (row key, position), without state and independent of the order of
evaluation, so a row with the same key has the same mask on every machine.

Source: google-research/bert create_pretraining_data.py, create_masked_lm_predictions.
Shapes: B row, T token, P masked position, K sentence pair in a row, V vocabulary; in
all rows, N pair, C candidate, U unit and S step. A unit is a piece, a word or a span;
its tokens are masked together.
"""

import dataclasses

import numpy as np

from bert_jax.config import ExperimentConfig, PhaseConfig
from bert_jax.data.batches import pairs
from bert_jax.data.tokenizers import base

_GOLDEN = np.uint32(0x9E3779B9)
_SPAN_SALT = np.uint32(0x85EBCA6B)  # makes span lengths independent of the positions


@dataclasses.dataclass(frozen=True)
class MaskRule:
    """The masking parameters of a phase."""

    max_predictions: int  # P
    mask_id: int  # of [MASK]
    replace_prob: float  # share of masked tokens that become [MASK]
    random_prob: float  # share of those that become a random token; others stay
    random_ids: np.ndarray  # int32, from which random tokens are drawn
    # bool[V], True for pieces that continue a word; None masks single pieces.
    continues_word_V: np.ndarray | None
    # Maximum units of a span; the probability of n units is proportional to 1 / n.
    ngram_max: int

    @classmethod
    def from_config(
        cls,
        config: ExperimentConfig,
        phase: PhaseConfig,
        tokenizer: base.Tokenizer,
    ) -> "MaskRule":
        data = config.data
        random_ids = np.arange(len(tokenizer.vocab), dtype=np.int32)
        if not data.mask_random_special:
            special = [tokenizer.id(token) for token in base.SPECIAL_TOKENS]
            random_ids = np.delete(random_ids, special)
        return cls(
            max_predictions=phase.max_predictions,
            mask_id=tokenizer.id(base.MASK),
            replace_prob=data.mask_replace_prob,
            random_prob=data.mask_random_prob,
            random_ids=random_ids,
            continues_word_V=tokenizer.continues_word if data.whole_word_mask else None,
            ngram_max=data.mask_ngram_max,
        )


def mask_rates(config: ExperimentConfig, steps_S: np.ndarray) -> np.ndarray:
    """Returns float64[S], the fraction of tokens to mask in each step of the run.

    Steps count from 0, and a batch that a rollback skips counts as one. Batches may be
    made for steps after the last.
    """
    first, last = config.data.masked_lm_prob, config.data.final_masked_lm_prob
    progress = np.minimum(steps_S / max(config.num_steps - 1, 1), 1.0)
    return first + (last - first) * progress * (last > 0)


def num_to_predict(
    lengths_BK: np.ndarray, rates_B1: np.ndarray | float, max_predictions: int
) -> np.ndarray:
    """Returns int64[B, K], the number of tokens to mask in each pair.

    The length of a pair includes [CLS] and [SEP]; it is 0 if there is no pair. As in
    the released code, halves are rounded to even.
    """
    counts_BK = np.rint(lengths_BK * rates_B1).astype(np.int64)
    return np.clip(counts_BK, 1, max_predictions) * (lengths_BK > 0)


def mask_rows(
    ids_BT: np.ndarray,
    candidates_BT: np.ndarray,
    num_candidates_BK: np.ndarray,
    num_to_predict_BK: np.ndarray,
    keys_B2: np.ndarray,
    rule: MaskRule,
    continues_BT: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Masks each row.

    Args:
      candidates_BT: uint8, the number, 1 to K, of the pair to which a token belongs; 0
        for [CLS], [SEP] and padding. Pairs are in ascending order.
      num_to_predict_BK: number of tokens to mask in each pair, at most P in total per
        row; 0 if there is no pair.
      keys_B2: uint32, key of the mask of each row.
      continues_BT: bool, True for tokens that continue a word regardless of their
        piece.

    Returns:
      int32[B, T] masked ids, int32[B, P] positions in ascending order, int32[B, P]
      original ids at the positions, float32[B, P] weights. Unused slots are 0 in all.
    """
    num_rows, length = ids_BT.shape
    key_B = keys_B2[:, 0]
    candidates = candidates_BT, num_candidates_BK, num_to_predict_BK
    if rule.continues_word_V is None and rule.ngram_max == 1:
        positions_BP = _choose_tokens(*candidates, key_B, rule.max_predictions)
    else:
        positions_BP = _choose_units(*candidates, key_B, rule, ids_BT, continues_BT)
    is_used_BP = positions_BP < length
    positions_BP *= is_used_BP
    flat_BP = positions_BP + np.arange(num_rows)[:, None] * length
    labels_BP = ids_BT.ravel().take(flat_BP)
    shown_BP = _replace(labels_BP, positions_BP, keys_B2[:, 1:], rule)
    masked_BT = ids_BT.copy()
    masked_BT.ravel()[flat_BP[is_used_BP]] = shown_BP[is_used_BP]
    labels_BP *= is_used_BP
    return masked_BT, positions_BP, labels_BP, is_used_BP.astype(np.float32)


def _choose_tokens(
    candidates_BT: np.ndarray,
    num_candidates_BK: np.ndarray,
    num_to_predict_BK: np.ndarray,
    key_B: np.ndarray,
    max_predictions: int,
) -> np.ndarray:
    """Selects int32[B, P] positions if every token is a unit.

    Positions are in ascending order, then T for unused slots.
    """
    (num_rows, length), num_pairs = candidates_BT.shape, num_candidates_BK.shape[1]
    order_BT = _random_order(candidates_BT, key_B, num_pairs)
    take_BK = np.minimum(num_to_predict_BK, num_candidates_BK)
    # Slot p belongs to pair k if end[k - 1] <= p < end[k].
    slot_P, end_BK = np.arange(max_predictions), np.cumsum(take_BK, axis=1)
    pair_BP = np.zeros((num_rows, max_predictions), np.uint8)
    for end_B in end_BK.T:
        pair_BP += slot_P >= end_B[:, None]
    # Offset from a slot to its index in order_BT, per pair; 0 without a pair.
    offset_BK = np.zeros((num_rows, num_pairs + 1), np.int64)
    offset_BK[:, :-1] = np.cumsum(num_candidates_BK, axis=1) - num_candidates_BK
    offset_BK[:, :-1] -= end_BK - take_BK
    row_B1 = np.arange(num_rows)[:, None]
    offset_BP = offset_BK.ravel().take(pair_BP + row_B1 * (num_pairs + 1))
    place_BP = offset_BP + (slot_P + row_B1 * length)
    positions_BP = order_BT.ravel().take(place_BP).astype(np.int32)
    positions_BP[pair_BP == num_pairs] = length
    positions_BP.sort(axis=1)
    return positions_BP


def _choose_units(
    candidates_BT: np.ndarray,
    num_candidates_BK: np.ndarray,
    num_to_predict_BK: np.ndarray,
    key_B: np.ndarray,
    rule: MaskRule,
    ids_BT: np.ndarray,
    continues_BT: np.ndarray | None,
) -> np.ndarray:
    """Selects int32[B, P] positions, as above, if units may have several tokens."""
    token_C = np.flatnonzero(candidates_BT)
    is_start_C = _unit_starts(
        ids_BT, token_C, num_candidates_BK, key_B, rule, continues_BT
    )
    first_U = np.flatnonzero(is_start_C)  # index in token_C of a unit's first token
    lengths_U = np.diff(np.append(first_U, len(token_C)))
    unit_at = np.empty(ids_BT.size, np.int32)
    unit_at[token_C[first_U]] = np.arange(len(first_U))
    ends = np.searchsorted(first_U, np.cumsum(num_candidates_BK))
    num_units_BK = np.diff(ends, prepend=0).reshape(num_candidates_BK.shape)

    starts = np.zeros(ids_BT.size, np.uint8)
    starts[token_C[first_U]] = candidates_BT.ravel()[token_C[first_U]]
    order_BT = _random_order(
        starts.reshape(ids_BT.shape), key_B, num_candidates_BK.shape[1]
    )
    begin_BK = np.cumsum(num_units_BK, axis=1) - num_units_BK
    left_BK, room_BK, chosen = num_units_BK, num_to_predict_BK, []
    while True:
        # A unit has at least one token, so at most `room_BK` units fit.
        take_BK = np.minimum(left_BK, room_BK)
        if not take_BK.any():
            break
        units = unit_at[_slices(order_BT, begin_BK, take_BK)]
        fits, room = _fit(lengths_U[units], take_BK.ravel(), room_BK.ravel())
        chosen.append(units[fits])
        begin_BK, left_BK = begin_BK + take_BK, left_BK - take_BK
        room_BK = room.reshape(room_BK.shape)
    units = np.concatenate([first_U[:0], *chosen])
    flat = np.sort(token_C[pairs.slice_indices(first_U[units], lengths_U[units])])
    num_rows, length = ids_BT.shape
    row, position = np.divmod(flat, length)
    count_B = np.bincount(row, minlength=num_rows)
    slot = np.arange(len(flat)) - np.repeat(np.cumsum(count_B) - count_B, count_B)
    positions_BP = np.full((num_rows, rule.max_predictions), length, np.int32)
    positions_BP[row, slot] = position
    return positions_BP


def _random_order(
    units_BT: np.ndarray, key_B: np.ndarray, num_pairs: int
) -> np.ndarray:
    """Returns uint32[B, T], the positions of units, shuffled within each pair.

    Positions without a unit (0 in units_BT) come last.
    """
    num_rows, length = units_BT.shape
    position_bits, pair_bits = (length - 1).bit_length(), num_pairs.bit_length()
    # One uint32 contains, from the top, the pair, random bits and the position, so that
    # sorting these numbers is enough. There are no ties.
    position_T = np.arange(length, dtype=np.uint32)
    words_BT = mix32(key_B[:, None] ^ (position_T * _GOLDEN))
    words_BT >>= np.uint32(position_bits + pair_bits)
    words_BT <<= np.uint32(position_bits)
    words_BT |= position_T
    pair_BT = (units_BT - np.uint8(1)).astype(np.uint32)  # 0 becomes 255, the last
    pair_BT <<= np.uint32(32 - pair_bits)
    words_BT |= pair_BT
    words_BT.sort(axis=1)
    words_BT &= np.uint32((1 << position_bits) - 1)
    return words_BT


def _slices(
    order_BT: np.ndarray, begin_BK: np.ndarray, take_BK: np.ndarray
) -> np.ndarray:
    """Returns the flat indices of the slices [begin, begin + take) of each row."""
    num_rows, length = order_BT.shape
    row_B1 = np.arange(num_rows)[:, None] * length
    index = pairs.slice_indices((row_B1 + begin_BK).ravel(), take_BK.ravel())
    return np.repeat(row_B1[:, 0], take_BK.sum(axis=1)) + order_BT.ravel()[index]


def _unit_starts(
    ids_BT: np.ndarray,
    token_C: np.ndarray,
    num_candidates_BK: np.ndarray,
    key_B: np.ndarray,
    rule: MaskRule,
    continues_BT: np.ndarray | None,
) -> np.ndarray:
    """Returns whether each candidate, with flat index token_C, starts a unit."""
    if rule.continues_word_V is None:
        is_start_C = np.ones(len(token_C), bool)
    else:
        # Truncation may leave a continuation piece at the start of B. The released code
        # masks this piece together with the last word of A.
        is_start_C = ~rule.continues_word_V[ids_BT.ravel()[token_C]]
        if continues_BT is not None:
            is_start_C &= ~continues_BT.ravel()[token_C]
        num_candidates = num_candidates_BK.ravel()
        first = np.cumsum(num_candidates) - num_candidates
        is_start_C[first[num_candidates > 0]] = True
    if rule.ngram_max > 1:
        is_start_C &= _span_starts(is_start_C, token_C, ids_BT.shape[1], key_B, rule)
    return is_start_C


def _span_starts(
    is_start_C: np.ndarray,
    token_C: np.ndarray,
    length: int,
    key_B: np.ndarray,
    rule: MaskRule,
) -> np.ndarray:
    """Tiles every segment with spans of 1 to ngram_max units; returns their starts."""
    units = np.flatnonzero(is_start_C)
    row, position = np.divmod(token_C[units], length)
    weights = 1.0 / np.arange(1, rule.ngram_max + 1)
    thresholds = np.cumsum(weights / weights.sum())[:-1] * 2.0**32
    words = mix32((key_B[row] + _SPAN_SALT) ^ (position.astype(np.uint32) * _GOLDEN))
    num_units = 1 + np.searchsorted(thresholds, words, side="right")
    # A span ends with its segment. A segment ends where candidates are not adjacent.
    segment = np.cumsum(np.diff(token_C, prepend=-2) != 1)[units]
    last = np.searchsorted(segment, segment, side="right")
    following = np.arange(len(units)) + num_units
    following = np.where(following < last, following, len(units))
    first = np.flatnonzero(np.diff(segment, prepend=-1))
    starts = np.zeros(len(is_start_C), bool)
    starts[units[pairs.walk(first, following)]] = True
    return starts


def _fit(
    lengths_U: np.ndarray, counts_N: np.ndarray, room_N: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Selects units in order, skipping those longer than the room left.

    counts_N and room_N are the numbers of units and of tokens to mask of each pair.
    Returns bool[U], True for selected units, and the room left in each pair.
    """
    pair_U = np.repeat(np.arange(len(counts_N)), counts_N)
    room_N = room_N.copy()
    chosen_U = np.zeros(len(lengths_U), bool)
    open_ = np.flatnonzero(lengths_U <= room_N[pair_U])
    # Each round selects the units of every pair up to the first that does not fit. That
    # unit and all others longer than the room left are then dropped, so there are few
    # rounds.
    while len(open_):
        pair, lengths = pair_U[open_], lengths_U[open_]
        used = np.cumsum(lengths)
        is_first = np.diff(pair, prepend=-1) != 0
        before = (used - lengths)[is_first]
        used -= before[np.cumsum(is_first) - 1]
        fits = used <= room_N[pair]
        chosen_U[open_[fits]] = True
        room_N -= np.bincount(pair[fits], lengths[fits], len(room_N)).astype(np.int64)
        open_ = open_[~fits & (lengths <= room_N[pair])]
    return chosen_U, room_N


def _replace(
    ids_BP: np.ndarray, positions_BP: np.ndarray, key_B1: np.ndarray, rule: MaskRule
) -> np.ndarray:
    """Returns the replacement of each masked token: [MASK], a random id or itself."""
    kind_BP = mix32(key_B1 ^ (positions_BP.astype(np.uint32) * _GOLDEN))
    random_BP = mix32(kind_BP + _GOLDEN).astype(np.uint64)
    random_BP *= np.uint64(len(rule.random_ids))
    random_BP >>= np.uint64(32)
    random_ids_BP = rule.random_ids.take(random_BP.view(np.int64))
    mask_below = rule.replace_prob * 2.0**32
    random_below = (rule.replace_prob + rule.random_prob) * 2.0**32
    return np.where(
        kind_BP < mask_below,
        np.int32(rule.mask_id),
        np.where(kind_BP < random_below, random_ids_BP, ids_BP),
    )


def mix32(x: np.ndarray) -> np.ndarray:
    """Returns a bijective hash of uint32 words, the same as `model.dropout.mix32`."""
    x = x ^ (x >> np.uint32(16))
    x *= np.uint32(0x7FEB352D)
    x ^= x >> np.uint32(15)
    x *= np.uint32(0x846CA68B)
    x ^= x >> np.uint32(16)
    return x
