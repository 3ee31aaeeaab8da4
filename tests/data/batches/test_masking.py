"""Tests of bert_jax.data.batches.masking."""

import dataclasses
import fractions
import math

import numpy as np
import pytest
import scipy.stats

from bert_jax.data.batches import masking
from tests.conftest import make_config

MIN_P = 1e-4  # of a goodness-of-fit test; seeds are fixed
PAD, CLS, SEP, MASK, FIRST = 0, 1, 2, 3, 4
VOCAB_SIZE = 50


def make_rows(num_rows, length, *, full=False, seed=0):
    """Returns ids [CLS] A [SEP] B [SEP] [PAD]... and their candidates."""
    rng = np.random.default_rng(seed)
    position = np.arange(length)
    end = rng.integers(4, length, (num_rows, 1))  # of the last [SEP]
    if full:
        end[:] = length - 1
    middle = rng.integers(2, end - 1)
    ids = rng.integers(FIRST, VOCAB_SIZE, (num_rows, length))
    candidates = (position > 0) & (position < end) & (position != middle)
    ids = np.where(position == 0, CLS, np.where(candidates, ids, SEP))
    ids = np.where(position > end, PAD, ids)
    return ids.astype(np.int32), candidates


def make_keys(num_rows, seed=0):
    return np.random.default_rng(seed + 1000).integers(
        0, 2**32, (num_rows, 2), np.uint32
    )


def make_rule(max_predictions=20, vocab_size=VOCAB_SIZE, **changes):
    return dataclasses.replace(
        masking.MaskRule(
            max_predictions=max_predictions,
            mask_id=MASK,
            replace_prob=0.8,
            random_prob=0.1,
            random_ids=np.arange(vocab_size, dtype=np.int32),
            continues_word_V=None,
            ngram_max=1,
        ),
        **changes,
    )


def mask(
    ids, candidates, count, keys, max_predictions=20, vocab_size=VOCAB_SIZE, **rule
):
    """Masks rows with one pair per row."""
    counts = np.broadcast_to(np.asarray(count, np.int64), len(ids))
    return masking.mask_rows(
        ids,
        candidates.astype(np.uint8),
        candidates.sum(1)[:, None],
        counts[:, None],
        keys,
        make_rule(max_predictions, vocab_size, **rule),
    )


# ----------------------------------------------------------- number of masked tokens


def test_num_to_predict_rounds_half_to_even():
    def table(most_tokens, max_predictions, rate):
        return masking.num_to_predict(np.arange(most_tokens + 1), rate, max_predictions)

    assert table(9, 16, 0.5)[[0, 1, 3, 5, 7, 9]].tolist() == [0, 1, 2, 2, 4, 4]
    assert table(64, 10, 0.5).max() == 10
    # As a float, 0.15 is slightly below 3/20, but 10 and 30 tokens give exactly 1.5 and
    # 4.5.
    assert fractions.Fraction(0.15) < fractions.Fraction(3, 20)
    assert table(128, 20, 0.15)[[5, 10, 30, 128]].tolist() == [1, 2, 4, 19]


def test_the_rate_changes_linearly_over_the_steps_of_the_run():
    config = make_config(data__masked_lm_prob=0.3, data__final_masked_lm_prob=0.1)
    steps = np.array([0, 19, 25])  # of 20
    np.testing.assert_allclose(masking.mask_rates(config, steps), [0.3, 0.1, 0.1])
    assert masking.mask_rates(config, steps + 5)[0] == 0.3 - 0.2 * 5 / 19
    assert (masking.mask_rates(make_config(), steps) == 0.15).all()


# ------------------------------------------------------------------------ positions


@pytest.mark.parametrize("length", [8, 48, 64, 65, 512])
def test_rows_are_well_formed(length):
    ids, candidates = make_rows(300, length)
    max_predictions = min(20, length)
    counts = np.random.default_rng(length).integers(1, max_predictions + 1, 300)
    masked, positions, labels, weights = mask(
        ids, candidates, counts, make_keys(300), max_predictions
    )
    dtypes = [output.dtype for output in (masked, positions, labels, weights)]
    assert dtypes == [np.int32, np.int32, np.int32, np.float32]
    used = weights > 0
    assert set(np.unique(weights)) <= {0.0, 1.0}
    wanted = np.minimum(counts, candidates.sum(1))
    np.testing.assert_array_equal(used.sum(1), wanted)
    assert (wanted < counts).any()
    # Used slots come first, in ascending order; all others are zero.
    assert (used == (np.arange(max_predictions) < used.sum(1)[:, None])).all()
    assert (np.diff(positions, axis=1) > 0)[used[:, 1:]].all()
    assert (positions[~used] == 0).all() and (labels[~used] == 0).all()
    # Never [CLS], [SEP] or padding.
    rows = np.broadcast_to(np.arange(300)[:, None], positions.shape)
    assert candidates[rows[used], positions[used]].all()
    # The labels are the original ids; all other ids are unchanged.
    np.testing.assert_array_equal(labels[used], ids[rows[used], positions[used]])
    chosen = np.zeros(ids.shape, bool)
    chosen[rows[used], positions[used]] = True
    np.testing.assert_array_equal(masked[~chosen], ids[~chosen])


def test_every_position_is_equally_likely():
    count, num_rows = 20, 12_000
    ids, candidates = make_rows(num_rows, 64, full=True)
    candidates = np.broadcast_to((np.arange(64) > 0) & (np.arange(64) < 63), ids.shape)
    _, positions, _, weights = mask(ids, candidates, count, make_keys(num_rows))
    assert weights.sum() == 240_000
    num_candidates = 62
    found = np.bincount(positions.ravel(), minlength=64)[1:63]
    expected = weights.sum() / num_candidates
    # Positions are drawn without replacement, so counts vary less than a multinomial.
    chi2 = ((found - expected) ** 2 / expected).sum()
    chi2 *= (num_candidates - 1) / (num_candidates - count)
    assert MIN_P < scipy.stats.chi2(num_candidates - 1).sf(chi2) < 1 - MIN_P


def test_positions_are_chosen_independently_of_each_other():
    """Two positions depend on each other only because k of m are chosen."""
    count, num_rows, num_candidates = 10, 12_000, 62
    ids = np.full((num_rows, 64), FIRST, np.int32)
    candidates = np.broadcast_to((np.arange(64) > 0) & (np.arange(64) < 63), ids.shape)
    _, positions, _, _ = mask(ids, candidates, count, make_keys(num_rows, 1), count)
    chosen = np.zeros((num_rows, 64))
    chosen[np.arange(num_rows)[:, None], positions] = 1
    together = (chosen.T @ chosen)[1:63, 1:63]
    together = together[np.triu_indices(num_candidates, 1)]
    share = count * (count - 1) / num_candidates / (num_candidates - 1)
    deviation = math.sqrt(num_rows * share * (1 - share))
    assert abs(together - num_rows * share).max() < 5.5 * deviation
    assert abs(together.std() / deviation - 1) < 0.1


# --------------------------------------------------------------------- replacements


def test_eighty_ten_ten():
    """Of a million tokens, 80% are [MASK], 10% unchanged and 10% random."""
    original = 30
    ids = np.full((50_000, 64), original, np.int32)
    candidates = np.broadcast_to(np.arange(64) > 0, ids.shape)
    masked, positions, _, weights = mask(ids, candidates, 20, make_keys(50_000))
    assert weights.sum(dtype=np.float64) == 1_000_000
    found = np.take_along_axis(masked, positions, 1).ravel()
    probabilities = np.full(VOCAB_SIZE, 0.1 / VOCAB_SIZE)
    probabilities[MASK] += 0.8
    probabilities[original] += 0.1
    counts = np.bincount(found, minlength=VOCAB_SIZE)
    assert len(counts) == VOCAB_SIZE
    assert scipy.stats.chisquare(counts, probabilities * len(found)).pvalue > MIN_P
    for share, where in ((0.8, MASK), (0.1, original)):
        share += 0.1 / VOCAB_SIZE
        bound = 5 * math.sqrt(share * (1 - share) / len(found))
        assert abs((found == where).mean() - share) < bound


@pytest.mark.parametrize("vocab_size", [100, 30_522, 250_000])
def test_random_tokens_span_the_vocabulary(vocab_size):
    ids = np.full((5000, 64), 4, np.int32)
    candidates = np.broadcast_to(np.arange(64) > 0, ids.shape)
    keys = make_keys(5000, vocab_size)
    masked, _, _, _ = mask(ids, candidates, 20, keys, vocab_size=vocab_size)
    random = masked[(masked != 4) & (masked != MASK)]
    assert random.min() >= 0 and random.max() < vocab_size
    assert random.min() <= vocab_size / 100
    assert random.max() > vocab_size * 0.99 - 2


def test_random_tokens_without_special_ones():
    """All other tokens are drawn equally often."""
    ids = np.full((5000, 64), 30, np.int32)
    candidates = np.broadcast_to(np.arange(64) > 0, ids.shape)
    keys, random_ids = make_keys(5000), np.arange(FIRST, VOCAB_SIZE, dtype=np.int32)
    rates = {"replace_prob": 0.0, "random_prob": 1.0}
    for allowed in (np.arange(VOCAB_SIZE, dtype=np.int32), random_ids):
        masked, positions, _, _ = mask(
            ids, candidates, 20, keys, random_ids=allowed, **rates
        )
        found = np.take_along_axis(masked, positions, 1).ravel()
        counts = np.bincount(found, minlength=VOCAB_SIZE)[allowed]
        assert counts.sum() == found.size
        assert scipy.stats.chisquare(counts).pvalue > MIN_P


# ------------------------------------------------------------ words, spans, pairs


def make_words(num_rows, length, seed=0):
    """Returns rows of words of 1 to 6 pieces, and the ids that continue a word."""
    rng = np.random.default_rng(seed)
    ids, candidates = make_rows(num_rows, length, seed=seed)
    continues = np.zeros(VOCAB_SIZE, bool)
    continues[VOCAB_SIZE // 2 :] = True
    pieces = rng.integers(FIRST, VOCAB_SIZE // 2, ids.shape)
    pieces += (VOCAB_SIZE // 2 - FIRST) * (rng.random(ids.shape) < 0.4)
    return np.where(candidates, pieces, ids).astype(np.int32), candidates, continues


def reference_words(ids, candidates, continues):
    """Returns the units of a row as lists of positions, as the released code does."""
    words = []
    for position in np.flatnonzero(candidates):
        if words and continues[ids[position]]:
            words[-1].append(int(position))
        else:
            words.append([int(position)])
    return words


def reference_choice(words, count, rng):
    chosen = []
    for word in rng.permutation(len(words)):
        if len(chosen) >= count:
            break
        if len(chosen) + len(words[word]) > count:
            continue
        chosen += words[word]
    return sorted(chosen)


def test_whole_words():
    """Words are masked whole, never over the quota, and no word is skipped that fits.

    The distributions of word lengths and of masks per row are those of the released
    loop.
    """
    num_rows = 6000
    ids, candidates, continues = make_words(num_rows, 32)
    counts = np.random.default_rng(1).integers(1, 7, num_rows)
    masked, positions, labels, weights = mask(
        ids, candidates, counts, make_keys(num_rows), 7, continues_word_V=continues
    )
    rng = np.random.default_rng(2)
    ours, theirs = np.zeros((2, 32), int), np.zeros((2, 32), int)
    for row in range(num_rows):
        words = reference_words(ids[row], candidates[row], continues)
        used = weights[row] > 0
        chosen = positions[row][used].tolist()
        assert labels[row][used].tolist() == ids[row][chosen].tolist()
        whole = [word for word in words if word[0] in chosen]
        assert sorted(sum(whole, [])) == chosen
        room = counts[row] - len(chosen)
        assert room >= 0
        assert all(len(word) > room for word in words if word not in whole)
        expected = reference_choice(words, counts[row], rng)
        for table, found in ((ours, chosen), (theirs, expected)):
            table[0, len(found)] += 1
            for word in words:
                table[1, len(word)] += word[0] in found
    for table in zip(ours, theirs, strict=True):
        table = np.array(table)[:, np.sum(table, axis=0) > 10]
        assert scipy.stats.chi2_contingency(table).pvalue > MIN_P


def test_fit_equals_a_plain_loop():
    rng = np.random.default_rng(0)
    counts = rng.integers(0, 12, 2000)
    room = rng.integers(0, 15, 2000)
    lengths = rng.integers(1, 8, counts.sum())
    expected, room_left, unit = np.zeros(len(lengths), bool), room.copy(), 0
    for pair, count in enumerate(counts):
        left = room[pair]
        for _ in range(count):
            if lengths[unit] <= left:
                expected[unit], left = True, left - lengths[unit]
            unit += 1
            room_left[pair] = left
    found, found_room = masking._fit(lengths, counts, room)
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(found_room, room_left)


@pytest.mark.parametrize("whole_words", [False, True])
def test_spans(whole_words):
    """The share of spans of n units is proportional to 1 / n.

    Spans are masked whole and stay within a segment.
    """
    length, ngram_max = 256, 3
    ids, candidates, continues = make_words(2000, length)
    if not whole_words:
        continues = None
    rule = make_rule(20, continues_word_V=continues, ngram_max=ngram_max)
    keys = make_keys(2000)
    token = np.flatnonzero(candidates)
    arguments = (ids, token, candidates.sum(1)[:, None], keys[:, 0])
    is_start = masking._unit_starts(*arguments, rule, None)
    words = dataclasses.replace(rule, ngram_max=1)
    is_word = masking._unit_starts(*arguments, words, None)
    first, word_first, unit_of = token[is_start], token[is_word], np.cumsum(is_start)
    assert set(first) <= set(word_first)
    # The number of words of each span, except spans cut short by the segment's end.
    num_words = np.diff(np.append(np.searchsorted(word_first, first), len(word_first)))
    ends_segment = np.append(np.diff(token) != 1, True)
    last = np.append(np.flatnonzero(np.diff(unit_of)), len(token) - 1)
    free = ~ends_segment[last]
    found = np.bincount(num_words[free], minlength=ngram_max + 1)[1:]
    assert len(found) == ngram_max and num_words.max() == ngram_max
    # Long spans are cut short slightly more often, so fewer of them are counted.
    shares = 1 / np.arange(1, ngram_max + 1)
    np.testing.assert_allclose(found / found.sum(), shares / shares.sum(), atol=0.02)
    if not whole_words:  # no span has tokens on both sides of a [SEP]
        inside = np.diff(unit_of) == 0
        assert (np.diff(token)[inside] == 1).all()


def test_each_pair_of_a_row_has_its_own_masks():
    rng = np.random.default_rng(0)
    num_rows, length, num_pairs = 4000, 64, 4
    ids = rng.integers(FIRST, VOCAB_SIZE, (num_rows, length)).astype(np.int32)
    pair = np.sort(rng.integers(1, num_pairs + 1, (num_rows, length)), axis=1)
    candidates = np.where(rng.random((num_rows, length)) < 0.9, pair, 0)
    candidates[:, 0] = 0
    candidates[:, 1:][np.diff(pair, axis=1) > 0] = 0  # [CLS]
    counts = rng.integers(0, 6, (num_rows, num_pairs))
    keys = make_keys(num_rows)
    for rule in (make_rule(20), make_rule(20, ngram_max=2)):
        available = np.stack([(candidates == k + 1).sum(1) for k in range(4)], 1)
        masked, positions, _, weights = masking.mask_rows(
            ids, candidates.astype(np.uint8), available, counts, keys, rule
        )
        found = np.take_along_axis(candidates, positions, 1) * (weights > 0)
        for k in range(num_pairs):
            wanted = np.minimum(counts[:, k], available[:, k])
            made = (found == k + 1).sum(1)
            assert (made <= wanted).all()
            # With spans, a slot is unused if only spans of two tokens are left.
            assert (made >= wanted - (rule.ngram_max - 1)).all()
        assert (np.diff(positions, axis=1) > 0)[weights[:, 1:] > 0].all()


# ---------------------------------------------------------------------------- keys


@pytest.mark.parametrize("word", [0, 1])
def test_different_keys_different_masks(word):
    """The first word determines the positions, the second the replacements."""
    ids, candidates = make_rows(2000, 64, full=True)
    keys, other = make_keys(2000), make_keys(2000)
    other[:, word] = make_keys(2000, seed=9)[:, word]
    first, second = (mask(ids, candidates, 10, k, 10) for k in (keys, other))
    same_positions = (first[1] == second[1]).all(1)
    assert same_positions.mean() < 0.01 if word == 0 else same_positions.all()
    assert (first[0] == second[0]).all(1).mean() < 0.1


def test_mix32():
    """The reference uses Python integers; changing the hash would change all masks."""

    def mix32(x):
        x = (x ^ x >> 16) * 0x7FEB352D % 2**32
        x = (x ^ x >> 15) * 0x846CA68B % 2**32
        return x ^ x >> 16

    words = [0, 1, 2, 12345, 2**31, 2**32 - 1]
    found = masking.mix32(np.array(words, np.uint32))
    assert found.tolist() == [mix32(word) for word in words]
