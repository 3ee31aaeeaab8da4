"""Tests of bert_jax.data.corpus.row_counts; the reference draws and packs passes."""

import numpy as np
import pytest

from bert_jax.data.batches import pairs
from bert_jax.data.corpus import row_counts
from tests.corpora import phase_of


def make_documents(lengths, seed=0):
    """Returns documents of about the given lengths, in sentences of about 12 tokens."""
    rng = np.random.default_rng(seed)
    sentences = [
        np.maximum(1, rng.poisson(12, max(1, round(length / 12)))) for length in lengths
    ]
    return pairs.Documents.from_lengths(
        np.concatenate(sentences), np.array([len(each) for each in sentences])
    )


def make_mix(seed=0):
    """Documents of a small shard: three long ones among short ones."""
    rng = np.random.default_rng(seed)
    lengths = np.concatenate([[9000, 12_000, 15_000], rng.exponential(300, 400) + 10])
    return make_documents(rng.permutation(lengths), seed)


def columns_of(shards):
    """Returns rows as read from a manifest."""
    return row_counts.from_columns(row_counts.to_columns(shards), "next_sentence")


@pytest.fixture(scope="module")
def mixed():
    documents = make_mix()
    return documents, row_counts.count(documents)


@pytest.mark.parametrize(
    ("length", "short_seq_prob"), [(90, 0.1), (128, 0.1), (512, 0.1), (128, 0.0)]
)
@pytest.mark.parametrize(
    "next_sentence, per_row", [(True, 1), (False, 1), (True, 6), (False, 8)]
)
def test_expected_rows_are_the_mean_of_passes(
    mixed, length, short_seq_prob, next_sentence, per_row
):
    """Neither length 90 nor 6 pairs in a row are in the manifest."""
    documents, counts = mixed
    data, phase = phase_of(length, short_seq_prob, per_row, next_sentence)
    columns = row_counts.to_columns([counts])
    (rows,) = row_counts.expected_rows(
        row_counts.from_columns(columns, row_counts.objective(data)), data, phase
    )
    draw = pairs.draw_pairs if next_sentence else pairs.draw_segments
    passes = []
    for i in range(20):
        drawn = draw(documents, length, short_seq_prob, pairs.CounterRandom(1, i))
        passes.append(pairs.num_rows(drawn.lengths, length, per_row))
    # Between two lengths, and where short pairs and full ones share rows, the estimate
    # is a few percent high. At 512 three documents of two parts each vary widely.
    error = 0.06 if length == 512 else 0.02
    bias = 0.0 if length != 90 and per_row == 1 else 0.06
    assert (1 - error - bias) * rows <= np.mean(passes) <= (1 + error) * rows


def test_each_document_is_counted_once_for_any_size_of_parts(mixed, monkeypatch):
    documents, whole = mixed
    monkeypatch.setattr(row_counts, "COUNTED_SENTENCES", 1000)
    parts = list(row_counts._parts(documents))
    ends = [part.token_offsets[-1] for part in parts]
    assert len(parts) > 8 and ends[-1] == documents.token_offsets[-1]
    assert [part.token_offsets[0] for part in parts] == [0, *ends[:-1]]
    for name, counts in zip(row_counts.OBJECTIVES, whole, strict=True):
        for length in (8, 64):
            found = row_counts._count(documents, name, length, key=1)[0]
            expected = counts[row_counts.LENGTHS.index(length)][0]
            assert found[0] == pytest.approx(expected[0], rel=0.02)
            assert found[1] == pytest.approx(expected[1], rel=0.05)


def make_rows(rows_by_length):
    """Returns int64[L, K, 2, 1] with (longest, short) rows for each length."""
    rows = np.ones((len(row_counts.LENGTHS), len(row_counts.PER_ROW), 2, 1), int)
    for i, length in enumerate(row_counts.LENGTHS):
        rows[i, :, :, 0] = rows_by_length(length)
    return rows


@pytest.mark.parametrize("length", [8, 48, 512, 3000, 8192, 12_000, 32_768])
@pytest.mark.parametrize("short_seq_prob", [0.0, 0.1, 0.5])
def test_a_power_law_is_followed_between_and_beyond_the_lengths(length, short_seq_prob):
    rows = make_rows(lambda length: (2**32 // length, 2**33 // length))
    expected = 2**32 / length * (1 + short_seq_prob)
    (found,) = row_counts.expected_rows(rows, *phase_of(length, short_seq_prob))
    assert found == pytest.approx(expected, rel=1e-5)


def test_counts_in_the_manifest_are_used_unchanged():
    """A mean of 110.5 is rounded the same way on every machine."""
    rows = make_rows(lambda length: (100, 205))
    for per_row in (1, 2, 3, 32):
        case = phase_of(128, 0.1, per_row)
        assert row_counts.expected_rows(rows, *case) == [110]
    assert row_counts.expected_rows(rows, *phase_of(128, 0.0)) == [100]
    assert row_counts.expected_rows(0 * rows, *phase_of(128, 0.0)) == [1]


def test_columns_of_several_shards():
    shards = [
        row_counts.count(make_documents([seed * 40] * 30, seed)) for seed in (1, 2)
    ]
    together = row_counts.expected_rows(columns_of(shards), *phase_of())
    alone = [row_counts.expected_rows(columns_of([s]), *phase_of())[0] for s in shards]
    assert together == alone and len(set(alone)) == 2
    assert columns_of([]).shape == (11, 5, 2, 0)
    assert row_counts.expected_rows(columns_of([]), *phase_of()) == []
