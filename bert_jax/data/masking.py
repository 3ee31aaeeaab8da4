"""Which tokens of a row are masked and what replaces them, in TensorFlow.

Masks are a hash of (row key, position): no generator, no state, no order of
evaluation, so the same row under the same key has the same mask anywhere.

Source: google-research/bert create_pretraining_data.py, create_masked_lm_predictions.
Shapes: B row, T token, P masked position.
"""

from typing import Any

import numpy as np

from bert_jax.data.quiet_tensorflow import tf

Tensor = Any  # tf.Tensor, whose shipped types know few of its operators

_GOLDEN = np.uint32(0x9E3779B9)


def num_to_predict_table(
    sequence_length: int, max_predictions: int, masked_lm_prob: float
) -> np.ndarray:
    """Returns int32[sequence_length + 1]: masked tokens of a row of each length.

    The length counts [CLS] and [SEP]; Python's round goes to the even neighbour.
    """
    return np.array(
        [
            min(max_predictions, max(1, round(length * masked_lm_prob)))
            for length in range(sequence_length + 1)
        ],
        np.int32,
    )


def mask_rows(
    ids_BT: Tensor,
    candidates_BT: Tensor,
    num_to_predict_B: Tensor,
    keys_B2: Tensor,
    *,
    max_predictions: int,
    mask_id: int,
    vocab_size: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Masks each row.

    Of the chosen tokens 80% become [MASK], 10% stay, 10% become any token of the
    vocabulary, special ones and the same one included, as in the released code.

    Args:
      ids_BT: int32.
      candidates_BT: bool, False for [CLS], [SEP] and padding; the first token of a
        row must not be one.
      num_to_predict_B: int32, at least 1.
      keys_B2: uint32, what the row's mask is a hash of.
      max_predictions: P.
      mask_id: of [MASK].
      vocab_size: number of ids.

    Returns:
      int32[B, T] masked ids, int32[B, P] positions in rising order, int32[B, P] the
      ids that stood there, float32[B, P] weights; unused slots are 0 throughout.
    """
    positions_BP, valid_BP = _choose(
        candidates_BT, num_to_predict_B, keys_B2[:, :1], max_predictions
    )
    weights_BP = tf.cast(valid_BP, tf.float32)
    ids_BP = tf.gather(ids_BT, positions_BP, batch_dims=1)
    replaced_BP = _replace(ids_BP, positions_BP, keys_B2[:, 1:], mask_id, vocab_size)
    # An unused slot points at position 0, [CLS], and writes back what is there.
    replaced_BP = tf.where(valid_BP, replaced_BP, ids_BP)
    rows_BP = tf.broadcast_to(
        tf.range(tf.shape(ids_BT)[0])[:, None], tf.shape(positions_BP)
    )
    masked_BT = tf.tensor_scatter_nd_update(
        ids_BT, tf.stack([rows_BP, positions_BP], axis=-1), replaced_BP
    )
    return masked_BT, positions_BP, tf.where(valid_BP, ids_BP, 0), weights_BP


def _choose(
    candidates_BT: Tensor,
    num_to_predict_B: Tensor,
    key_B1: Tensor,
    max_predictions: int,
) -> tuple[Tensor, Tensor]:
    """Returns positions int32[B, P], rising, and which of them are used."""
    length = candidates_BT.shape[1]
    bits = (length - 1).bit_length()
    # The position sits in the low bits of its own random number, so the largest
    # numbers are the chosen positions: no ties, no lookup.
    position_T = tf.range(length, dtype=tf.int32)
    random_BT = mix32(
        key_B1 ^ tf.constant(np.arange(length, dtype=np.uint32) * _GOLDEN)
    )
    high_BT = tf.bitwise.left_shift(
        tf.cast(tf.bitwise.right_shift(random_BT, np.uint32(bits + 1)), tf.int32), bits
    )
    sort_BT = tf.where(candidates_BT, high_BT | position_T[None], -1)
    largest_BP = tf.math.top_k(sort_BT, k=max_predictions).values
    used_BP = tf.range(max_predictions)[None] < num_to_predict_B[:, None]
    used_BP &= largest_BP >= 0  # a row may have fewer candidates than wanted
    chosen_BP = tf.where(used_BP, largest_BP & ((1 << bits) - 1), length)
    rising_BP = -tf.math.top_k(-chosen_BP, k=max_predictions).values
    valid_BP = rising_BP < length
    return tf.where(valid_BP, rising_BP, 0), valid_BP


def _replace(
    ids_BP: Tensor,
    positions_BP: Tensor,
    key_B1: Tensor,
    mask_id: int,
    vocab_size: int,
) -> Tensor:
    """Returns what stands at the chosen positions: [MASK], the token, or any token."""
    counter_BP = tf.cast(positions_BP, tf.uint32) * tf.constant(_GOLDEN)
    first_BP = mix32(key_B1 ^ counter_BP)
    second_BP = tf.cast(mix32(first_BP + tf.constant(_GOLDEN)), tf.uint64)
    # One word holds two draws: its top bit is the coin, the rest the token.
    keep_BP = second_BP < np.uint64(2**31)
    any_BP = tf.cast(
        tf.bitwise.right_shift(
            (second_BP & np.uint64(2**31 - 1)) * np.uint64(vocab_size), np.uint64(31)
        ),
        tf.int32,
    )
    is_mask_BP = first_BP < np.uint32(round(0.8 * 2**32))
    return tf.where(is_mask_BP, mask_id, tf.where(keep_BP, ids_BP, any_BP))


def mix32(x: Tensor) -> Tensor:
    """Returns a bijective hash of uint32 words; the same function as model.mix32."""
    x = (x ^ tf.bitwise.right_shift(x, np.uint32(16))) * np.uint32(0x7FEB352D)
    x = (x ^ tf.bitwise.right_shift(x, np.uint32(15))) * np.uint32(0x846CA68B)
    return x ^ tf.bitwise.right_shift(x, np.uint32(16))
