"""Tests of bert_jax.data.batches.row_layout."""

import numpy as np
import pytest

from bert_jax.data.batches import row_layout


@pytest.mark.parametrize("num_pairs", [1, 2, 32])
@pytest.mark.parametrize("has_b", [True, False])
def test_layout_equals_a_plain_loop(num_pairs, has_b):
    rng = np.random.default_rng(num_pairs)
    pairs_BK5 = np.zeros((50, num_pairs, 5), np.int32)
    for row in pairs_BK5:
        for pair in row[: rng.integers(1, num_pairs + 1)]:
            pair[:] = rng.integers((100, 0, 500, 1, 0), (400, 7, 900, 7, 2))
            pair[2:] *= has_b
    length = 16 * num_pairs
    layout = row_layout.lay_out(pairs_BK5, length)
    for i, row in enumerate(pairs_BK5):
        expected = []  # source, segment, position, sequence, candidate of each place
        firsts, lengths = [0] * num_pairs, [0] * num_pairs
        for k, (a_start, a_length, b_start, b_length, _) in enumerate(row.tolist()):
            if not a_start:  # A may be empty
                continue
            places = [(row_layout.CLS, 0, False)]
            places += [(a_start + j, 0, True) for j in range(a_length)]
            places += [(row_layout.SEP, 0, False)]
            places += [(b_start + j, 1, True) for j in range(b_length)]
            places += [(row_layout.SEP, 1, False)] * has_b
            firsts[k], lengths[k] = len(expected), len(places)
            expected += [
                (source, segment, position, k + 1, (k + 1) * is_text)
                for position, (source, segment, is_text) in enumerate(places)
            ]
        num_real = len(expected)
        found = np.stack(
            [
                layout.source_BT[i],
                layout.segment_ids_BT[i],
                layout.position_ids_BT[i],
                layout.sequence_ids_BT[i],
                layout.candidates_BT[i],
            ],
            axis=1,
        )
        assert found[:num_real].tolist() == [list(place) for place in expected]
        padding = found[num_real:]
        assert (padding[:, 0] == row_layout.PAD + np.arange(len(padding))).all()
        assert not padding[:, [1, 3, 4]].any()
        assert layout.first_BK[i].tolist() == firsts
        assert layout.lengths_BK[i].tolist() == lengths
        assert padding[:, 2].max(initial=0) < length
