"""Tests of bert_jax.data.batches.pairs; the reference is the released loop."""

import random as python_random

import numpy as np
import pytest
import scipy.stats

from bert_jax.data.batches import pairs
from tests.conftest import slow

MIN_P = 1e-4  # of a two-sample test; seeds are fixed, so it passes or fails for good


# ----------------------------------------------------------- the released procedure


def reference_pairs(documents, sequence_length, short_seq_prob, rng):
    """Yields (A, B, is_random) of one pass; tokens are their positions."""
    max_num_tokens = sequence_length - 3
    for index, document in enumerate(documents):
        target = max_num_tokens
        if rng.random() < short_seq_prob:
            target = rng.randint(2, max_num_tokens)
        chunk, length, i = [], 0, 0
        while i < len(document):
            chunk.append(document[i])
            length += len(document[i])
            if i == len(document) - 1 or length >= target:
                a_end = rng.randint(1, len(chunk) - 1) if len(chunk) >= 2 else 1
                a = sum(chunk[:a_end], [])
                is_random = len(chunk) == 1 or rng.random() < 0.5
                if is_random:
                    b = reference_random(documents, index, target - len(a), rng)
                    i -= len(chunk) - a_end
                else:
                    b = sum(chunk[a_end:], [])
                a, b = reference_truncate(a, b, max_num_tokens, rng)
                yield a, b, is_random
                chunk, length = [], 0
            i += 1


def reference_random(documents, index, wanted, rng):
    for _ in range(10):
        other = rng.randint(0, len(documents) - 1)
        if other != index:
            break
    document = documents[other]
    b = []
    for sentence in document[rng.randint(0, len(document) - 1) :]:
        b += sentence
        if len(b) >= wanted:
            break
    return b


def reference_truncate(a, b, max_num_tokens, rng):
    a, b = list(a), list(b)
    while len(a) + len(b) > max_num_tokens:
        longer = a if len(a) > len(b) else b
        longer.pop(0 if rng.random() < 0.5 else -1)
    return a, b


# ------------------------------------------------------------------- distributions


def make_lengths(num_documents, seed, max_sentences=15, max_tokens=40):
    """Returns tokens per sentence and sentences per document."""
    rng = np.random.default_rng(seed)
    document_lengths = rng.integers(1, max_sentences + 1, num_documents)
    sentence_lengths = rng.integers(1, max_tokens + 1, document_lengths.sum())
    # Some sentences are longer than a row.
    sentence_lengths[rng.random(len(sentence_lengths)) < 0.02] = 150
    return sentence_lengths, document_lengths


def make_documents(*args, **kwargs):
    return pairs.Documents.from_lengths(*make_lengths(*args, **kwargs))


def as_lists(documents):
    tokens, sentences = documents.token_offsets, documents.sentence_offsets
    return [
        [list(range(tokens[s], tokens[s + 1])) for s in range(start, stop)]
        for start, stop in zip(sentences[:-1], sentences[1:], strict=True)
    ]


def as_pairs(drawn):
    """Converts the token lists of the reference to slices."""
    for a, b, _ in drawn:
        assert a == list(range(a[0], a[0] + len(a)))
        assert b == list(range(b[0], b[0] + len(b)))
    rows = [(a[0], len(a), b[0], len(b), is_random) for a, b, is_random in drawn]
    *columns, is_random = np.array(rows).T
    return pairs.Pairs(*columns, is_random.astype(bool))


def sentence_of(documents, token):
    return np.searchsorted(documents.token_offsets, token, side="right") - 1


def document_of(documents, token):
    sentence = sentence_of(documents, token)
    return np.searchsorted(documents.sentence_offsets, sentence, side="right") - 1


def draw(documents, sequence_length=64, short_seq_prob=0.1, key=(0,)):
    return pairs.draw_pairs(
        documents, sequence_length, short_seq_prob, pairs.CounterRandom(*key)
    )


def is_whole_chunk(documents, drawn, target):
    """Returns whether the first sentence of A fills a chunk by itself."""
    sentence = sentence_of(documents, drawn.a_start)
    last = documents.sentence_offsets[document_of(documents, drawn.a_start) + 1] - 1
    return (np.diff(documents.token_offsets)[sentence] >= target) | (sentence == last)


def observe(documents, drawn, max_num_tokens):
    """Returns all quantities whose distributions are compared, by name."""
    a_end, b_end = drawn.a_start + drawn.a_length, drawn.b_start + drawn.b_length
    offsets = documents.token_offsets
    a_first, b_first = (
        sentence_of(documents, drawn.a_start),
        sentence_of(documents, drawn.b_start),
    )
    own = document_of(documents, drawn.a_start)
    return {
        "A tokens": drawn.a_length,
        "B tokens": drawn.b_length,
        "B tokens of random": drawn.b_length[drawn.is_random],
        "B tokens of following": drawn.b_length[~drawn.is_random],
        "A and B tokens": drawn.a_length + drawn.b_length,
        "sentences of A": sentence_of(documents, a_end - 1) - a_first,
        "sentences of B": sentence_of(documents, b_end - 1) - b_first,
        "tokens cut before A": drawn.a_start - offsets[a_first],
        "tokens cut before B": drawn.b_start - offsets[b_first],
        "where A begins": a_first - documents.sentence_offsets[own],
        "where random B begins": (
            b_first - documents.sentence_offsets[document_of(documents, drawn.b_start)]
        )[drawn.is_random],
        "label": drawn.is_random,
        "label of full rows": drawn.is_random[
            drawn.a_length + drawn.b_length == max_num_tokens
        ],
        "is full": drawn.a_length + drawn.b_length == max_num_tokens,
        "one-sentence chunk": is_whole_chunk(documents, drawn, max_num_tokens),
    }


@pytest.mark.parametrize("short_seq_prob", [0.1, *(slow(p) for p in (0.0, 1.0))])
def test_distributions_equal_those_of_the_released_procedure(short_seq_prob):
    length = 64
    documents = make_documents(15_000, seed=1)
    rng = python_random.Random(2)
    expected = as_pairs(
        list(reference_pairs(as_lists(documents), length, short_seq_prob, rng))
    )
    drawn = draw(documents, length, short_seq_prob, key=(3,))
    num_expected, num_drawn = len(expected.lengths), len(drawn.lengths)
    assert min(num_expected, num_drawn) >= 50_000
    assert abs(num_drawn / num_expected - 1) < 0.03
    ours = observe(documents, drawn, length - 3)
    theirs = observe(documents, expected, length - 3)
    for name, values in ours.items():
        if values.dtype == bool:
            table = [np.bincount(v, minlength=2) for v in (values, theirs[name])]
            p_value = scipy.stats.chi2_contingency(table).pvalue
        else:
            p_value = scipy.stats.ks_2samp(values, theirs[name]).pvalue
        assert p_value > 1e-3, name


def test_documents_of_up_to_16_rows_draw_one_target():
    """With sentences of one token, all chunks but the last have the target length."""
    num_documents = 3000
    documents = pairs.Documents.from_lengths(
        np.ones(num_documents * 100, int), np.full(num_documents, 100)
    )
    drawn = draw(documents, 16, short_seq_prob=1.0)
    ends = drawn.b_start + drawn.b_length
    inner = ~drawn.is_random & (ends % 100 != 0)
    own = document_of(documents, drawn.a_start)
    lengths = drawn.a_length + drawn.b_length
    found = np.unique(np.stack([own, lengths])[:, inner], axis=1)
    assert found[0].tolist() == list(range(num_documents))  # one target each
    counts = np.bincount(found[1])
    # Uniform from 2 to 13, both included.
    assert len(counts) == 14 and counts[:2].tolist() == [0, 0]
    assert scipy.stats.chisquare(counts[2:]).pvalue > MIN_P


# ------------------------------------------------------- targets of long documents


@pytest.fixture(scope="module")
def books():
    """Three documents of 250 rows of 128 tokens, among short documents."""
    document_lengths = np.full(33, 8)
    document_lengths[[3, 17, 30]] = 3000
    lengths = np.random.default_rng(0).integers(1, 22, document_lengths.sum())
    return pairs.Documents.from_lengths(lengths, document_lengths)


@pytest.mark.parametrize("length", [32, 128])
def test_every_part_of_a_long_document_draws_from_the_same_distribution(books, length):
    """The share of parts of 16 rows with a short target is short_seq_prob."""
    targets = np.stack(
        [
            pairs._targets(books, length - 3, 0.3, pairs.CounterRandom(length, i))
            for i in range(1500)
        ]
    )
    token = books.token_offsets[:-1] - np.repeat(
        books.token_offsets[books.sentence_offsets[:-1]],
        np.diff(books.sentence_offsets),
    )
    part = token // (16 * (length - 3))
    document = np.repeat(np.arange(33), np.diff(books.sentence_offsets))
    _, first = np.unique(np.stack([document, part]), axis=1, return_index=True)
    assert len(first) > 33 + 3
    for sentences in np.split(targets, first[1:], axis=1):
        assert (sentences == sentences[:, :1]).all()  # one target a part
        short = sentences[:, 0][sentences[:, 0] < length - 3]
        share = 0.3 * (length - 5) / (length - 4)  # a short target may be the longest
        assert abs(len(short) / 1500 - share) < 5 * np.sqrt(0.21 / 1500)
        counts = np.bincount(short, minlength=length - 3)[2:]
        assert scipy.stats.chisquare(counts).pvalue > MIN_P


def test_targets_of_parts_of_one_size_are_spread_evenly():
    """In every pass, 30 of 300 equal documents have a short target, plus or minus 1."""
    documents = pairs.Documents.from_lengths(np.full(3000, 5), np.full(300, 10))
    for key in range(20):
        targets = pairs._targets(documents, 125, 0.1, pairs.CounterRandom(key))
        short = targets[::10][targets[::10] < 125]
        assert abs(len(short) - 30) <= 2
        assert (
            abs(short.mean() - 63.5) < 5
        )  # independent draws deviate by 36 / sqrt(30)


# --------------------------------------------------------------- the released walk


def recorded_draw(monkeypatch, *args):
    """Returns the pairs of a pass before and after truncation, and all targets."""
    given, targets_of, cut_of = {}, pairs._targets, pairs._truncate

    def targets(*args):
        given["targets"] = targets_of(*args)
        return given["targets"]

    def truncate(drawn, *args):
        given["chosen"] = drawn
        return cut_of(drawn, *args)

    with monkeypatch.context() as patch:
        patch.setattr(pairs, "_targets", targets)
        patch.setattr(pairs, "_truncate", truncate)
        drawn = draw(*args)
    return given["chosen"], drawn, given["targets"]


def tokens_of(sentences):
    """Returns the tokens of consecutive sentences as a slice."""
    return sentences[0][0], sentences[-1][-1] + 1


def take(sentences, wanted):
    """Returns the first sentences that have `wanted` tokens, or all of them."""
    taken, length = [], 0
    for sentence in sentences:
        taken.append(sentence)
        length += len(sentence)
        if length >= wanted:
            break
    return taken


@pytest.mark.parametrize(
    "sequence_length, short_seq_prob", [(8, 0.0), (9, 0.9), (64, 0.1), (128, 0.5)]
)
def test_pairs_equal_those_of_the_released_walk(
    monkeypatch, sequence_length, short_seq_prob
):
    """The released procedure with our random numbers visits the same pairs.

    Only tokens at the ends of segments are missing, which truncation removes.
    """
    documents = make_documents(400, seed=11)
    chosen, drawn, targets = recorded_draw(
        monkeypatch, documents, sequence_length, short_seq_prob
    )
    lists, remaining = as_lists(documents), iter(range(len(drawn.lengths)))
    owner = {s[0]: (d, i) for d, ls in enumerate(lists) for i, s in enumerate(ls)}
    for own, document in enumerate(lists):
        i = 0
        while i < len(document):
            n = next(remaining)
            target = targets[documents.sentence_offsets[own] + i]
            chunk = take(document[i:], target)
            a, b = (
                (start, start + length)
                for start, length in (
                    (chosen.a_start[n], chosen.a_length[n]),
                    (chosen.b_start[n], chosen.b_length[n]),
                )
            )
            beginnings = [tokens_of(chunk[:k]) for k in range(1, len(chunk) + 1)]
            a_end = 1 + beginnings.index(a)
            assert a_end < max(len(chunk), 2)
            if drawn.is_random[n]:
                other, first = owner[b[0]]
                assert other != own
                wanted = target - chosen.a_length[n]
                assert b == tokens_of(take(lists[other][first:], wanted))
                i += a_end  # the chunk's other sentences are used again
            else:
                assert len(chunk) > 1 and b == tokens_of(chunk[a_end:])
                i += len(chunk)
    assert next(remaining, None) is None
    assert drawn.a_length.min() >= 1 and drawn.b_length.min() >= 1
    for name in "ab":
        off_front = getattr(drawn, f"{name}_start") - getattr(chosen, f"{name}_start")
        cut = getattr(chosen, f"{name}_length") - getattr(drawn, f"{name}_length")
        assert ((off_front >= 0) & (off_front <= cut)).all()
    assert (chosen.lengths - drawn.lengths).any()
    fits = chosen.lengths <= sequence_length
    np.testing.assert_array_equal(
        drawn.lengths, np.where(fits, chosen.lengths, sequence_length)
    )


# ------------------------------------------------------- rows of a single segment


def reference_segments(document, max_num_tokens):
    """Yields the rows of a document, one token at a time for long sentences."""
    parts = []
    for sentence in document:
        for i in range(0, len(sentence), max_num_tokens):
            parts.append(sentence[i : i + max_num_tokens])
    row = []
    for part in parts:
        if row and len(row) + len(part) > max_num_tokens:
            yield row
            row = []
        row = row + part
    yield row


@pytest.mark.parametrize("sequence_length", [8, 32, 128, 512])
def test_segments_are_whole_sentences_that_fit(sequence_length):
    documents = make_documents(400, seed=9)
    drawn = pairs.draw_segments(documents, sequence_length, 0.0, pairs.CounterRandom(1))
    expected = [
        (row[0], len(row))
        for document in as_lists(documents)
        for row in reference_segments(document, sequence_length - 2)
    ]
    found = zip(drawn.a_start.tolist(), drawn.a_length.tolist(), strict=True)
    assert list(found) == expected
    assert not drawn.b_length.any() and not drawn.is_random.any()
    assert drawn.lengths.max() <= sequence_length


def test_one_document():
    """Ten tries find no other document, so a random B is from the same document."""
    documents = pairs.Documents.from_lengths(np.full(2000, 5), np.array([2000]))
    drawn = draw(documents)
    assert 0.4 < drawn.is_random.mean() < 0.6
    assert (drawn.b_start + drawn.b_length).max() <= 10_000
    follows = drawn.b_start == drawn.a_start + drawn.a_length
    assert follows[drawn.is_random].mean() < 0.1


def test_ten_tries_to_find_another_document():
    """With two documents, all ten tries draw that of A with probability 2**-10."""
    random = pairs.CounterRandom(1)
    own = np.zeros(200_000, np.int64)
    missed = (pairs._other_documents(own, 2, random) == own).sum()
    expected = len(own) / 2**10
    assert abs(missed - expected) < 5 * np.sqrt(expected)


# --------------------------------------------------------------------- truncation


def truncate(a, b, max_num_tokens, key=0):
    """Truncates a pair whose A starts at token 100 and B at token 500."""
    size = np.broadcast_shapes(np.shape(a), np.shape(b))
    full = pairs.Pairs(
        np.full(size, 100),
        np.broadcast_to(a, size),
        np.full(size, 500),
        np.broadcast_to(b, size),
        np.zeros(size, bool),
    )
    return pairs._truncate(full, max_num_tokens, pairs.CounterRandom(key))


@pytest.mark.parametrize("max_num_tokens", [2, 5, 12, 13])
def test_truncation_of_every_small_pair(max_num_tokens):
    a, b = (x.ravel() for x in np.mgrid[1:21, 1:21])
    cut = truncate(a, b, max_num_tokens)
    rng = python_random.Random(0)
    for i in range(len(a)):
        expected = reference_truncate(range(a[i]), range(b[i]), max_num_tokens, rng)
        assert (cut.a_length[i], cut.b_length[i]) == tuple(map(len, expected))
    for start, length, cut_length in (
        (cut.a_start - 100, a, cut.a_length),
        (cut.b_start - 500, b, cut.b_length),
    ):
        assert ((start >= 0) & (start <= length - cut_length)).all()


@pytest.mark.parametrize("a, b", [(25, 5), (5, 25)])
def test_truncation_removes_from_the_front_or_the_back_with_equal_probability(a, b):
    """Only the longer segment is truncated."""
    cut = truncate(np.full(20_000, a), np.full(20_000, b), 20)
    off_front = cut.a_start - 100, cut.b_start - 500
    longer, shorter = off_front if a > b else off_front[::-1]
    expected = 20_000 * scipy.stats.binom(10, 0.5).pmf(np.arange(11))
    counts = np.bincount(longer, minlength=11)
    assert scipy.stats.chisquare(counts, expected).pvalue > MIN_P
    assert (shorter == 0).all()


# ------------------------------------------------------------------ CounterRandom


def test_golden_values():
    """If NumPy changed these values, resumed runs would differ."""
    random = pairs.CounterRandom(1, 2, 3)
    assert random.words(3).tolist() == [
        13279728891206244966,
        234311473967787377,
        1837962869696963184,
    ]
    assert random.uniform(3).tolist() == [
        0.8874396368723878,
        0.4642904820586716,
        0.6059034872164907,
    ]
    assert random.below(np.array([10, 100, 1000])).tolist() == [5, 80, 69]
    tosses = np.array([0, 1, 10, 63, 64, 200])
    assert random.heads(tosses).tolist() == [0, 0, 4, 29, 30, 89]
    assert tosses.tolist() == [0, 1, 10, 63, 64, 200]


def test_each_number_of_spread_is_uniform_and_all_are_evenly_spaced():
    values = np.stack([pairs.CounterRandom(9, i).spread(64) for i in range(3000)])
    assert values.min() >= 0 and values.max() < 1
    for place in (0, 1, 63):
        assert scipy.stats.kstest(values[:, place], "uniform").pvalue > MIN_P
    # Numbers at golden-ratio steps have no gap much wider than the mean gap.
    gaps = np.diff(np.sort(values, axis=1), axis=1)
    assert gaps.max() < 2.7 / 64


@pytest.mark.parametrize("tosses", [1, 2, 62, 63, 64, 126, 127, 1000])
def test_heads(tosses):
    """Each 63 tosses need a new word; reused words would change the variance."""
    size = 20_000
    heads = pairs.CounterRandom(6, tosses).heads(np.full(size, tosses))
    assert 0 <= heads.min() and heads.max() <= tosses
    deviation = np.sqrt(tosses) / 2
    assert abs(heads.mean() - tosses / 2) < 5 * deviation / np.sqrt(size)
    assert abs(heads.std() / deviation - 1) < 0.03


# --------------------------------------------------------------------------- packing


def random_lengths(num_pairs, length, seed=0, full=0.3):
    """Returns random lengths, some of which fill a row."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(5, length + 1, num_pairs)
    return np.where(rng.random(num_pairs) < full, length, lengths)


def best_fit(lengths, length, per_row):
    """Returns the number of rows if pairs are packed one at a time, longest first."""
    rows = []
    for pair in sorted(lengths, reverse=True):
        fitting = [row for row in rows if row[0] >= pair and row[1] < per_row]
        if fitting:
            row = min(fitting)
            row[0], row[1] = row[0] - pair, row[1] + 1
        else:
            rows.append([length - pair, 1])
    return len(rows)


@pytest.mark.parametrize("per_row", [1, 2, 3, 8, 32])
@pytest.mark.parametrize("length", [16, 128, 512])
def test_rows_hold_every_pair_once_and_fit(length, per_row):
    lengths = random_lengths(5000, length)
    rows = pairs.pack(lengths, length, per_row)
    assert rows.shape == (pairs.num_rows(lengths, length, per_row), per_row)
    used = rows >= 0
    assert sorted(rows[used]) == list(range(5000))
    assert np.where(used, lengths[rows], 0).sum(1).max() <= length
    # There is no empty row, and empty places come last.
    assert (used == (np.arange(per_row) < used.sum(1)[:, None])).all()
    assert used[:, 0].all()


@pytest.mark.parametrize("per_row", [2, 3, 8])
def test_the_number_of_rows_equals_that_of_packing_pairs_one_at_a_time(per_row):
    for seed in range(5):
        lengths = random_lengths(400, 128, seed)
        rows = pairs.num_rows(lengths, 128, per_row)
        assert rows <= 1.01 * best_fit(lengths, 128, per_row)
        assert rows >= max(lengths.sum() / 128, 400 / per_row)


def test_enough_pairs_leave_hardly_any_padding():
    lengths = random_lengths(20_000, 512)
    rows = pairs.num_rows(lengths, 512, 8)
    assert lengths.sum() / (rows * 512) > 0.99


def test_pairs_of_one_length_are_packed_in_order():
    """A shuffle before packing therefore determines which of them share a row."""
    lengths = np.full(9, 10)
    rows = pairs.pack(lengths, 32, 3)
    assert rows.tolist() == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]


def test_few_and_no_pairs():
    assert pairs.pack(np.array([7]), 8, 4).tolist() == [[0, -1, -1, -1]]
    assert pairs.pack(np.array([4, 5]), 8, 4).shape == (2, 4)
    assert len(pairs.pack(np.array([], int), 8, 4)) == 0
