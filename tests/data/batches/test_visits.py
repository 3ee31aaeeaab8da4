"""Tests of bert_jax.data.batches.visits: the pairs and rows of a visit."""

import collections

import numpy as np
import pytest

from bert_jax.data.batches import pairs, visits
from tests.corpora import make_config, make_documents, phase_of, write


@pytest.fixture(scope="module")
def documents():
    """Two long documents among many short ones."""
    lengths = np.full(102, 12)
    lengths[[20, 70]] = 600
    tokens = np.random.default_rng(0).integers(1, 20, lengths.sum())
    return pairs.Documents.from_lengths(tokens, lengths)


def draw(documents, settings, num_rows, key=(1,)):
    return visits._draw_rows(documents, *settings, num_rows, key)


def pairs_of(rows):
    """Returns A and B of every pair in the given rows."""
    every = rows.reshape(-1, 5)
    return [tuple(pair) for pair in every[every[:, 1] > 0, :4].tolist()]


def passes(documents, settings, count, key=(1,)):
    """Returns the first passes of a visit, as sets of pairs."""
    data, phase = settings
    draw_pass = pairs.draw_pairs if data.next_sentence else pairs.draw_segments
    found = []
    for number in range(count):
        random = pairs.CounterRandom(visits.PAIRS, *key, number)
        drawn = draw_pass(documents, phase.sequence_length, data.short_seq_prob, random)
        found.append(set(pairs_of(drawn.as_columns())))
    return found


@pytest.mark.parametrize("share", [0.5, 0.97, 1.0])
@pytest.mark.parametrize("next_sentence", [True, False])
def test_rows_in_excess_of_a_pass_are_dropped(documents, share, next_sentence):
    settings = phase_of(64, next_sentence=next_sentence)
    (first,) = passes(documents, settings, 1)
    num_rows = int(share * len(first))
    rows = draw(documents, settings, num_rows)
    assert rows.shape == (num_rows, 1, 5)
    found = pairs_of(rows)
    assert len(set(found)) == num_rows and set(found) <= first


@pytest.mark.parametrize("more", [1.02, 1.5, 2.5])
@pytest.mark.parametrize("per_row", [1, 4])
def test_missing_rows_are_drawn_in_further_passes_without_repeats(
    documents, more, per_row
):
    settings = phase_of(64, per_row=per_row)
    first, second, third = passes(documents, settings, 3)
    lengths = np.array([a_length + b_length + 3 for _, a_length, _, b_length in first])
    num_rows = int(more * pairs.num_rows(lengths, 64, per_row))
    rows = draw(documents, settings, num_rows)
    assert len(rows) == num_rows
    found = pairs_of(rows)
    assert len(set(found)) == len(found)
    assert set(found) <= first | second | third
    if per_row == 1:
        assert first <= set(found)  # nothing of the first pass is dropped
        assert len(set(found) - first - second) == max(
            0, num_rows - len(first | second)
        )


@pytest.mark.parametrize(
    "next_sentence, per_row, num_documents",
    [(True, 1, 2), (True, 4, 2), (False, 1, 1), (False, 4, 1)],
)
def test_rows_are_repeated_evenly_if_there_are_no_new_pairs(
    next_sentence, per_row, num_documents
):
    """With documents of one sentence, each pass gives the same pairs."""
    documents = pairs.Documents.from_lengths(
        np.full(num_documents, 2), np.ones(num_documents, int)
    )
    settings = phase_of(8, 0.0, per_row, next_sentence)
    rows = draw(documents, settings, 7)
    assert rows.shape == (7, per_row, 5)
    counts = collections.Counter(pairs_of(rows))
    assert len(counts) == num_documents
    assert max(counts.values()) - min(counts.values()) <= 1


def test_a_visit_has_num_rows_rows_and_mask_keys(tmp_path):
    config = make_config(tmp_path)
    corpus = write(config, make_documents(60))
    shard, phase = corpus.shards["train"][0], config.phases[0]
    num_special = 2 + phase.sequence_length
    for num_rows in (3, 40, 200):
        stream = visits.Stream(0, ((0, shard),), (num_rows,), (1, 0, 0))
        visit = visits.draw(corpus, config.data, phase, stream, epoch=5, index=0)
        assert (visit.epoch, visit.shard) == (5, shard.file)
        assert visit.pairs_RK5.shape == (num_rows, phase.max_sequences_per_row, 5)
        assert visit.keys_R2.shape == (num_rows, 2)
        assert len(set(map(tuple, visit.keys_R2))) == num_rows
        assert len(visit.tokens) == num_special + shard.num_tokens
        every = np.array(pairs_of(visit.pairs_RK5))
        assert every[:, [0, 2]].min() >= num_special
        assert every[:, 0:2].sum(axis=1).max() <= len(visit.tokens)
