"""Tests of bert_jax.data.batches.row_layout: layout and truncation of rows."""

import numpy as np
import pytest

from bert_jax.data.batches import pairs, row_layout
from tests.models import TOKENIZER

CLS, SEP, PAD = range(3)  # the special tokens before those of a visit


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
            places = [(CLS, 0, False)]
            places += [(a_start + j, 0, True) for j in range(a_length)]
            places += [(SEP, 0, False)]
            places += [(b_start + j, 1, True) for j in range(b_length)]
            places += [(SEP, 1, False)] * has_b
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
        assert (padding[:, 0] == PAD + np.arange(len(padding))).all()
        assert not padding[:, [1, 3, 4]].any()
        assert layout.first_BK[i].tolist() == firsts
        assert layout.lengths_BK[i].tolist() == lengths
        assert padding[:, 2].max(initial=0) < length


def cut_by_tokenizers(a, b, most):
    """Returns the lengths after `longest_first` truncation of Hugging Face."""
    tokenizers = pytest.importorskip("tokenizers")
    vocabulary = {"[UNK]": 0, "[CLS]": 1, "[SEP]": 2, "a": 3, "b": 4}
    model = tokenizers.models.WordLevel(vocabulary, unk_token="[UNK]")
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 1), ("[SEP]", 2)],
    )
    tokenizer.enable_truncation(most + 3)
    texts = [("a " * m, "b " * n) for m, n in zip(a, b, strict=True)]
    ids = [encoding.ids for encoding in tokenizer.encode_batch(texts)]
    return np.array([[row.count(3), row.count(4)] for row in ids])


@pytest.mark.slow
@pytest.mark.parametrize("most", [5, 12, 29, 30, 70])
def test_truncation_differs_from_hugging_face_as_the_model_card_states(most):
    """The difference is one token, see `PAIRS` in the model card."""
    a, b = (x.ravel() for x in np.meshgrid(np.arange(1, 40), np.arange(1, 40)))
    ours = np.stack(pairs.truncate_longest(a, b, most), axis=1)
    theirs = cut_by_tokenizers(a, b, most)
    length = most + 3  # [CLS] A [SEP] B [SEP]
    differs = (length % 2 == 0) & (a >= length // 2 - 1) & (b >= a)
    assert differs.any() == (length in (8, 32))
    np.testing.assert_array_equal(theirs - ours, np.where(differs[:, None], [-1, 1], 0))


def test_rows_of_one_text_and_of_two():
    texts = [np.array([10, 11, 12], np.int32), np.array([20, 21], np.int32)]
    tokens = row_layout.join(texts, TOKENIZER, 8)
    (a, b), cls, sep = tokens.starts, TOKENIZER.id("[CLS]"), TOKENIZER.id("[SEP]")
    made = row_layout.Rows(tokens.ids, np.array([[a, 3, b, 2], [b, 2, 0, 0]]), 8)
    arrays = made.arrays(made.layout(np.array([0, 1])))
    np.testing.assert_array_equal(
        arrays["input_ids"],
        [[cls, 10, 11, 12, sep, 20, 21, sep], [cls, 20, 21, sep, 0, 0, 0, 0]],
    )
    np.testing.assert_array_equal(
        arrays["segment_ids"], [[0, 0, 0, 0, 0, 1, 1, 1], [0] * 8]
    )
    np.testing.assert_array_equal(arrays["sequence_ids"], [[1] * 8, [1] * 4 + [0] * 4])
    np.testing.assert_array_equal(arrays["position_ids"], [range(8)] * 2)
    assert all(array.dtype == np.int32 for array in arrays.values())


def test_cut_shortens_rows_to_the_longest_text():
    texts = [np.arange(n, dtype=np.int32) for n in (10, 15, 40, 200)]
    tokens = row_layout.join(texts, TOKENIZER, 100)
    none = np.full(4, -1)
    made, _ = row_layout.of_pairs(tokens, np.arange(4), none, 100)
    lengths = [made.cut(np.array([row])).length for row in range(4)]
    assert lengths == [16, 32, 64, 100]
    assert made.cut(np.array([0, 2])).length == 64
    # A row has two special tokens with one text, three with two texts.
    of_two = np.array([[0, 12, 0, 0], [0, 14, 0, 0], [0, 7, 0, 7]])
    made = row_layout.Rows(tokens.ids, of_two, 100)
    assert [made.cut(np.array([row])).length for row in range(3)] == [16, 16, 32]


def test_aligned_values_have_the_indices_of_their_tokens():
    tokens = row_layout.join([np.array([7, 8]), np.array([9])], TOKENIZER, 4)
    values = row_layout.aligned([np.array([70, 80]), np.array([90])], tokens, -1)
    assert dict(zip(tokens.ids[-3:], values[-3:], strict=True)) == {7: 70, 8: 80, 9: 90}
    assert (values[:-3] == -1).all() and len(values) == len(tokens.ids)


def test_a_text_without_tokens_is_a_row_of_cls_and_sep():
    texts = TOKENIZER.encoder()(["w1", " \u200b ", "w2"])
    tokens = row_layout.join(texts, TOKENIZER, 16)
    rows, _ = row_layout.of_pairs(
        tokens, np.array([1, 1, 0]), np.array([-1, 2, -1]), 16
    )
    arrays = rows.arrays(rows.layout(np.arange(3)))
    cls, sep = TOKENIZER.id("[CLS]"), TOKENIZER.id("[SEP]")
    w1, w2 = TOKENIZER.id("w1"), TOKENIZER.id("w2")
    expected = [[cls, sep], [cls, sep, w2, sep], [cls, w1, sep]]
    for i, ids in enumerate(expected):
        n = int(arrays["sequence_ids"][i].sum())
        assert arrays["input_ids"][i, :n].tolist() == ids and rows.num_tokens()[i] == n
    assert arrays["segment_ids"][1].tolist()[:5] == [0, 0, 1, 1, 0]
