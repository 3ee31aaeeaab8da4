"""Tests of bert_jax.data.batches.pipeline on corpora in which every token is unique.

A token identifies its position in the corpus, so rows can be compared with the text.
"""

import collections
import copy
import itertools
import json
import math
import random
import threading

import numpy as np
import pytest
from numpy.testing import assert_equal

from bert_jax import config as config_lib
from bert_jax import errors
from bert_jax.data.batches import masking, pairs, pipeline, visits
from bert_jax.data.corpus import build
from bert_jax.data.tokenizers import tokenizers
from tests import corpora, one_phase
from tests.commands import run_code
from tests.conftest import slow
from tests.corpora import changed

BATCH, LENGTH, PREDICTIONS = 16, 32, 5


class Made:
    """A corpus, its config with one stream per shard, and the positions of its tokens.

    document_of has the document of each token id. The tokens of a document have
    consecutive ids; special tokens and unused ids have document -1.
    """

    def __init__(
        self,
        directory,
        num_shards,
        sentence_tokens,
        num_documents=60,
        spare_tokens=20,
        **data,
    ):
        rng = random.Random(num_shards)
        vocab = [f"w{i}" for i in range(spare_tokens)]
        vocab += tokenizers.SPECIAL_TOKENS
        lines, self.document_of = [], [-1] * len(vocab)
        for document in range(num_documents):
            for _ in range(rng.randint(1, 24) if document else 2):
                words = [
                    f"w{len(vocab) + i}" for i in range(rng.randint(1, sentence_tokens))
                ]
                vocab += words
                self.document_of += [document] * len(words)
                lines.append(" ".join(words))
            lines.append("")
        self.document_of = np.array(self.document_of)
        directory.mkdir()
        (directory / "vocab.txt").write_text("\n".join(vocab))
        (directory / "text.txt").write_text("\n".join(lines))
        config = one_phase.get_config()
        config.data.sources = (f"text:{directory}/text.txt",)
        config.data.corpus_dir = str(directory / "corpus")
        config.data.num_shards = num_shards
        config.data.num_streams = num_shards
        config.data.validation_fraction = 0.2
        config.data.update(data)
        config.tokenizer.vocab_file = str(directory / "vocab.txt")
        config.tokenizer.vocab_size = len(vocab)
        phase = {
            "num_steps": 10,
            "sequence_length": LENGTH,
            "global_batch_size": BATCH,
            "max_predictions": PREDICTIONS,
            "max_sequences_per_row": 1,
        }
        config.phases = (phase, phase | {"sequence_length": 64, "max_predictions": 9})
        self.config = config_lib.from_config_dict(config)
        self.corpus = build.prepare(self.config)
        self.special = {t: vocab.index(t) for t in tokenizers.SPECIAL_TOKENS}

    def with_streams(self, num_streams):
        return changed(self.config, "data", num_streams=num_streams)

    def with_phase(self, index, **changes):
        """Returns a copy with other values in one phase."""
        tree = json.loads(self.config.to_json())
        tree["phases"][index] |= changes
        made = copy.copy(self)
        made.config = config_lib.from_config_dict(tree)
        return made

    def streams(self, split="train", *, num_streams=None, seed=1, phase_index=0):
        config = self.with_streams(num_streams) if num_streams else self.config
        return visits.make_streams(self.corpus, config, split, seed, phase_index)

    def batches(self, count, first_step=0, *, num_streams=None, **options):
        config = self.with_streams(num_streams) if num_streams else self.config
        options |= {"first_step": first_step}
        made = corpora.batches(self.corpus, config, **options)
        return list(itertools.islice(made, count))

    def tokens(self, split):
        return {
            int(token)
            for shard in self.corpus.shards[split]
            for token in self.corpus.load(shard)[0]
        }

    def steps_per_epoch(self, num_streams):
        """Steps in which every stream has gone through an epoch, with one to spare."""
        rows = max(sum(s.rows) for s in self.streams(num_streams=num_streams))
        return math.ceil(rows / (BATCH // num_streams)) + 1


@pytest.fixture(scope="module")
def one_shard(tmp_path_factory):
    return Made(tmp_path_factory.mktemp("one") / "made", 1, 9)


@pytest.fixture(scope="module")
def four_shards(tmp_path_factory):
    return Made(tmp_path_factory.mktemp("four") / "made", 4, 9)


@pytest.fixture(scope="module")
def short_sentences(tmp_path_factory):
    """A corpus of sentences of one token: chunks reach targets exactly."""
    return Made(tmp_path_factory.mktemp("short") / "made", 2, 1)


def draw_visit(made, stream, epoch, index, phase_index):
    """Draws a visit as the pipeline does."""
    data, phase = made.config.data, made.config.phases[phase_index]
    return visits.draw(made.corpus, data, phase, stream, epoch, index)


def rows_of(batches):
    """Concatenates batches."""
    return {key: np.concatenate([b[key] for b in batches]) for key in batches[0]}


def unmasked(rows):
    """Returns input_ids before masking."""
    ids = rows["input_ids"].copy()
    row, slot = np.nonzero(rows["masked_lm_weights"])
    ids[row, rows["masked_lm_positions"][row, slot]] = rows["masked_lm_ids"][row, slot]
    return ids


def segments(rows):
    """Returns A, B and the label of each row."""
    ids = unmasked(rows)
    result = []
    for row in range(len(ids)):
        length = rows["sequence_ids"][row].sum()
        num_a = length - rows["segment_ids"][row].sum()
        a, b = ids[row, 1 : num_a - 1], ids[row, num_a : length - 1]
        result.append((tuple(a), tuple(b), int(rows["next_sentence_labels"][row, 0])))
    return result


def differ(first, second):
    """Returns whether most rows of two lists of batches differ."""
    a, b = rows_of(first)["input_ids"], rows_of(second)["input_ids"]
    return a.shape != b.shape or (a != b).any(1).mean() > 0.9


# -------------------------------------------------------------------------- rows


@pytest.mark.parametrize("phase_index", [0, 1])
def test_rows_are_text_of_the_corpus(four_shards, phase_index):
    """Unmasked segments are slices of documents; B follows A according to the label."""
    rows = rows_of(four_shards.batches(20, num_streams=1, phase_index=phase_index))
    max_num_tokens = rows["input_ids"].shape[1] - 3
    document_of = four_shards.document_of
    for a, b, label in segments(rows):
        for segment in (a, b):
            assert segment == tuple(range(segment[0], segment[0] + len(segment)))
            assert document_of[segment[0]] == document_of[segment[-1]] >= 0
        assert (document_of[a[0]] != document_of[b[0]]) == label
        if label == 0:
            full = len(a) + len(b) == max_num_tokens
            assert b[0] == a[-1] + 1 or (full and b[0] > a[-1])


# ----------------------------------------------------------------- from any step


@pytest.mark.parametrize("num_streams", [1, 2, 4])
def test_the_batch_of_a_step_does_not_depend_on_the_first_step(
    four_shards, num_streams
):
    """This includes steps in the second and third epoch."""
    made = four_shards
    epoch = made.steps_per_epoch(num_streams)
    count = 2 * epoch + 3
    walked = made.batches(count, num_streams=num_streams)
    for step in (epoch - 2, count - 2):
        direct = made.batches(2, first_step=step, num_streams=num_streams)
        assert_equal(direct, walked[step : step + 2])


@pytest.mark.parametrize("split", ["train", "validation"])
def test_the_number_of_steps_made_at_once_does_not_change_batches(
    four_shards, monkeypatch, split
):
    host = {"host": 1, "num_hosts": 2}
    several = four_shards.batches(20, split=split, **host)
    for tokens in (1, 3 * BATCH * LENGTH):  # one step, and 6 of half the rows or 3
        monkeypatch.setattr(visits, "TOKENS_AT_A_TIME", tokens)
        assert_equal(four_shards.batches(20, split=split, **host), several)


def test_visits_can_start_at_any_row():
    """`visits` from any row is a suffix of `visits` from the first row."""
    sizes = (3, 10, 1)
    stream = visits.Stream(0, ((0, None), (1, None), (2, None)), sizes, (1, 0, 0))

    def rows(first_row, count):
        found = []
        for epoch, i, first in stream.visits(first_row):
            found += [(epoch, i, row) for row in range(first, sizes[i])]
            if len(found) >= count:
                return found[:count]

    epoch = sum(sizes)
    whole = rows(0, 5 * epoch)
    assert len(set(whole)) == len(whole)
    assert [number for number, _, _ in whole] == [i // epoch for i in range(len(whole))]
    for first_row in range(3 * epoch):
        assert rows(first_row, epoch) == whole[first_row : first_row + epoch]


# ------------------------------------------------------------------------- hosts


@pytest.mark.parametrize(
    ("split", "num_streams", "batch_size", "num_hosts"),
    [
        ("train", 4, 16, 2),
        ("validation", 4, 16, 4),  # a slice of the one stream
        *(("train", n, 12, 3) for n in (1, 2, 4)),  # they share the streams
        slow("train", 4, 12, 6),
        slow("train", 2, 12, 12),
    ],
)
def test_the_rows_of_all_hosts_are_the_global_batch(
    four_shards, split, num_streams, batch_size, num_hosts
):
    made = four_shards.with_phase(0, global_batch_size=batch_size)
    options = {"first_step": 5, "num_streams": num_streams, "split": split}
    whole = made.batches(4, **options)
    parts = [
        made.batches(4, host=host, num_hosts=num_hosts, **options)
        for host in range(num_hosts)
    ]
    shapes = {batch["input_ids"].shape for part in parts for batch in part}
    assert shapes == {(batch_size // num_hosts, LENGTH)}
    together = [rows_of(batches) for batches in zip(*parts, strict=True)]
    assert_equal(together, whole)


@pytest.fixture(scope="module")
def sixteen_shards(tmp_path_factory):
    """A corpus with a second phase of packed rows; an epoch has some dozen steps."""
    made = Made(tmp_path_factory.mktemp("sixteen") / "made", 16, 9, num_documents=200)
    return made.with_phase(0, num_steps=100).with_phase(
        1,
        num_steps=100,
        sequence_length=48,
        global_batch_size=32,
        max_predictions=11,
        max_sequences_per_row=3,
    )


# ------------------------------------------------------------- packed and single rows


def test_packed_rows_are_well_formed(sixteen_shards):
    rows = rows_of(sixteen_shards.batches(30, phase_index=1))
    special = sixteen_shards.special
    ids, sequence_ids = unmasked(rows), rows["sequence_ids"]
    num_pairs = sequence_ids.max(1)
    weights = rows["next_sentence_weights"]
    assert weights.shape[1] == 3
    np.testing.assert_array_equal(weights.sum(1), num_pairs)
    np.testing.assert_array_equal((ids == special["[CLS]"]).sum(1), num_pairs)
    np.testing.assert_array_equal((ids == special["[SEP]"]).sum(1), 2 * num_pairs)
    np.testing.assert_array_equal(ids == special["[PAD]"], sequence_ids == 0)
    row, pair = np.nonzero(weights)
    first = rows["next_sentence_positions"][row, pair]
    assert (ids[row, first] == special["[CLS]"]).all()
    assert (sequence_ids[row, first] == pair + 1).all()
    masked_pair = np.take_along_axis(sequence_ids, rows["masked_lm_positions"], axis=1)
    for k in range(3):
        is_pair = sequence_ids == k + 1
        has = is_pair.any(1)
        start = rows["next_sentence_positions"][:, k]
        position = np.where(is_pair, rows["position_ids"], 0)
        expected = np.where(is_pair, np.arange(48) - start[:, None], 0)
        np.testing.assert_array_equal(position, expected)
        count = ((masked_pair == k + 1) & (rows["masked_lm_weights"] > 0)).sum(1)
        length = is_pair.sum(1)
        wanted = np.minimum(masking.num_to_predict(length, 0.15, 11), length - 3)
        np.testing.assert_array_equal(count[has], wanted[has])
    text = (sequence_ids > 0).mean()
    assert text > 0.9
    unpacked = sixteen_shards.with_phase(1, max_sequences_per_row=1)
    alone = rows_of(unpacked.batches(30, phase_index=1))["sequence_ids"]
    assert text > (alone > 0).mean() + 0.05


def test_the_rate_of_masks_is_that_of_the_step(four_shards):
    """Phase 1 has steps 10 to 19 of the run; several are made at a time."""
    made = four_shards.with_phase(0, max_predictions=16)
    made = made.with_phase(1, max_predictions=32)
    rates = {"masked_lm_prob": 0.1, "final_masked_lm_prob": 0.5}
    made.config = changed(made.config, "data", **rates)
    for step, rows in enumerate(made.batches(8, first_step=2, phase_index=1), 2):
        lengths = rows["sequence_ids"].sum(1)
        rate = 0.1 + 0.4 * (10 + step) / 19
        wanted = np.minimum(np.rint(lengths * rate), lengths - 3)
        np.testing.assert_array_equal(rows["masked_lm_weights"].sum(1), wanted)


def test_rows_of_one_segment(tmp_path):
    made = Made(tmp_path / "made", 2, 9, next_sentence=False)
    rows = rows_of([epoch_rows(made, epoch) for epoch in range(3)])
    ids, special = unmasked(rows), made.special
    length = rows["sequence_ids"].sum(1)
    assert not rows["segment_ids"].any() and not rows["next_sentence_weights"].any()
    assert (ids[:, 0] == special["[CLS]"]).all()
    assert (ids[np.arange(len(ids)), length - 1] == special["[SEP]"]).all()
    assert ((ids == special["[SEP]"]).sum(1) == 1).all()
    text = ids[made.document_of[ids] >= 0]
    assert set(text) == made.tokens("train")
    for row, n in zip(ids, length, strict=True):
        assert row[1 : n - 1].tolist() == list(range(row[1], row[1] + n - 2))
        assert made.document_of[row[1]] == made.document_of[row[n - 2]]


def test_masks_follow_the_config(four_shards):
    """Whole words, spans and rates change the masks, but not the rows."""
    plain = rows_of(four_shards.batches(5))
    for changes in (
        {"whole_word_mask": True},
        {"mask_ngram_max": 3},
        {"mask_replace_prob": 0.0, "mask_random_prob": 0.0},
        {
            "mask_replace_prob": 0.0,
            "mask_random_prob": 1.0,
            "mask_random_special": False,
        },
    ):
        made = copy.copy(four_shards)
        made.config = changed(made.config, "data", **changes)
        rows = rows_of(made.batches(5))
        np.testing.assert_array_equal(unmasked(rows), unmasked(plain))
        same_places = (
            rows["masked_lm_positions"] == plain["masked_lm_positions"]
        ).mean()
        if "mask_ngram_max" in changes:
            assert same_places < 0.7
        else:  # every word of this corpus is one piece
            assert same_places == 1.0
        if "mask_replace_prob" in changes:
            assert not (rows["input_ids"] == made.special["[MASK]"]).any()


@pytest.mark.parametrize(
    ("num_spare", "ngram_max", "max_sequences_per_row"),
    [
        slow(0, 1, 1),
        (2**15, 1, 1),  # ids and marks need four bytes
        (0, 3, 1),
        slow(0, 1, 4),
        slow(0, 1, 32),
    ],
)
def test_words_of_ideographs_are_masked_whole(
    tmp_path, num_spare, ngram_max, max_sequences_per_row
):
    """Each ideograph of this text belongs to one word, so rows identify their words."""
    rng = random.Random(0)
    ideographs = "".join(chr(0x4E00 + i) for i in range(900))
    ends = sorted(rng.sample(range(1, 900), 400))
    words = [ideographs[i:j] for i, j in itertools.pairwise([0, *ends, 900])]
    (tmp_path / "text.txt").write_text(
        "\n\n".join(
            "\n".join(" ".join(rng.choices(words, k=8)) for _ in range(9))
            for _ in range(40)
        )
    )
    vocab = [*(f"spare{i}" for i in range(num_spare)), *tokenizers.SPECIAL_TOKENS]
    first = len(vocab)  # the ideographs follow
    vocab += ideographs
    (tmp_path / "vocab.txt").write_text("\n".join(vocab))
    found = {}
    for word_segmented in (True, False):
        config = one_phase.get_config()
        config.data.update(
            sources=(f"text:{tmp_path}/text.txt",),
            corpus_dir=str(tmp_path / f"corpus-{word_segmented}"),
            word_segmented=word_segmented,
            whole_word_mask=True,
            masked_lm_prob=0.3,
            mask_ngram_max=ngram_max,
        )
        phase = config.phases[0]
        phase.max_sequences_per_row, phase.max_predictions = max_sequences_per_row, 63
        config.tokenizer.vocab_file = str(tmp_path / "vocab.txt")
        config.tokenizer.vocab_size = len(vocab)
        config = config_lib.from_config_dict(config)
        batches = corpora.batches(build.prepare(config), config)
        found[word_segmented] = rows_of([next(batches) for _ in range(10)])
    ids = unmasked(found[True])
    np.testing.assert_array_equal(ids, unmasked(found[False]))
    # Whether two neighbours are consecutive ideographs of one word.
    word_of = np.full(len(vocab), -1)
    word_of[first:] = np.repeat(np.arange(len(words)), [len(word) for word in words])
    left, right = ids[:, :-1], ids[:, 1:]
    is_inside = (word_of[left] == word_of[right]) & (right == left + 1)
    num_in_part = {}
    for word_segmented, rows in found.items():
        is_masked = np.zeros(ids.shape, bool)
        row, slot = np.nonzero(rows["masked_lm_weights"])
        is_masked[row, rows["masked_lm_positions"][row, slot]] = True
        in_part = is_inside & (is_masked[:, 1:] != is_masked[:, :-1])
        num_in_part[word_segmented] = np.count_nonzero(in_part)
    assert num_in_part[True] == 0 and num_in_part[False] > 100


def test_validation_does_not_depend_on_the_number_of_streams(four_shards):
    one, four = (
        four_shards.batches(3, split="validation", num_streams=n) for n in (1, 4)
    )
    assert_equal(one, four)


# ------------------------------------------------------------------------ epochs


def epoch_rows(made, epoch, num_streams=1):
    """Returns the rows of one epoch of every stream, concatenated."""
    sizes = [sum(stream.rows) for stream in made.streams(num_streams=num_streams)]
    per_step = BATCH // num_streams
    num_steps = math.ceil(max(sizes) * (epoch + 1) / per_step)
    batches = made.batches(num_steps, num_streams=num_streams)
    return rows_of(
        [
            {
                key: np.concatenate(
                    [b[key][i * per_step : (i + 1) * per_step] for b in batches]
                )[size * epoch : size * (epoch + 1)]
                for key in batches[0]
            }
            for i, size in enumerate(sizes)
        ]
    )


@pytest.mark.parametrize("num_streams", [1, 2])
def test_epochs_use_every_sentence(short_sentences, num_streams):
    """A sentence is in an A or in a B that follows; an epoch may drop some pairs."""
    every, train = set(), short_sentences.tokens("train")
    for epoch in range(4):
        used = set()
        for a, b, label in segments(epoch_rows(short_sentences, epoch, num_streams)):
            used.update(a, () if label else b)
        assert len(used) > 0.85 * len(train)
        every |= used
    assert every == train


def test_epochs_differ_in_pairs_and_masks(short_sentences):
    epochs = [epoch_rows(short_sentences, epoch) for epoch in range(4)]
    first, second = epochs[:2]
    assert (first["input_ids"] != second["input_ids"]).any(1).mean() > 0.9
    pairs_of = [set(segments(rows)) for rows in (first, second)]
    assert len(pairs_of[0] & pairs_of[1]) < 0.5 * len(pairs_of[0])
    # Rows that happen to have the same text have different masks.
    masks = collections.defaultdict(list)
    for rows in epochs:
        for row, positions in zip(
            segments(rows), rows["masked_lm_positions"], strict=True
        ):
            if len(row[0]) + len(row[1]) >= 6:
                masks[row].append(tuple(positions))
    repeated = [found for found in masks.values() if len(found) > 1]
    assert len(repeated) >= 5
    assert sum(len(set(found)) == 1 for found in repeated) < len(repeated) / 2


def test_rows_are_shuffled_within_a_visit(one_shard):
    rows = segments(rows_of(one_shard.batches(8)))
    starts = [a[0] for a, _, _ in rows]
    rises = np.mean(np.diff(starts) > 0)
    assert 0.3 < rises < 0.7


def test_no_two_draws_share_a_key(short_sentences, monkeypatch):
    """All draws of three streams, two phases and five epochs have different keys."""
    keys = []

    class Recorded(pairs.CounterRandom):
        def __init__(self, *key):
            # Excludes draws that the iterators of other tests still run.
            if threading.current_thread() is threading.main_thread():
                keys.append(key)
            super().__init__(*key)

    monkeypatch.setattr(pairs, "CounterRandom", Recorded)
    made = short_sentences
    for phase_index, split in itertools.product((0, 1), ("train", "validation")):
        for stream in made.streams(split, phase_index=phase_index):
            for epoch, i, _ in itertools.islice(stream.visits(0), 5):
                draw_visit(made, stream, epoch, i, phase_index)
    monkeypatch.undo()
    assert len(keys) >= 2 * 3 * 5 * 4  # order, pairs of a pass, shuffle, rows
    # The purpose of a draw comes first, and keys of one purpose have the same length.
    assert len({key[0] for key in keys}) == len({(key[0], len(key)) for key in keys})
    assert {key[0] for key in keys} == {0, 1, 2, 3}
    first = {}
    for key in keys:
        word = int(pairs.CounterRandom(*key).words(1)[0])
        assert word not in first, (key, first[word])
        first[word] = key


# --------------------------------------------------------------- seeds and splits


def test_seeds_differ_and_repeat(one_shard):
    first, second, other = (one_shard.batches(4, seed=seed) for seed in (1, 1, 2))
    assert_equal(first, second)
    assert differ(first, other)


def test_validation_text_is_not_trained_on(four_shards):
    made, used = four_shards, {}
    for split in ("train", "validation"):
        count = made.steps_per_epoch(1)
        rows = segments(rows_of(made.batches(count, split=split, num_streams=1)))
        used[split] = {token for a, b, _ in rows for token in (*a, *b)}
        assert used[split] <= made.tokens(split)
        assert len(used[split]) > 0.9 * len(made.tokens(split))
    documents = {split: set(made.document_of[list(used[split])]) for split in used}
    assert not documents["train"] & documents["validation"]
    assert len(documents["train"] | documents["validation"]) == 60


# --------------------------------------------------------------------- tf.data


@pytest.mark.parametrize(
    ("split", "first_step", "host", "num_hosts"),
    [("train", 0, 0, 1), ("train", 37, 1, 3), ("validation", 2, 1, 2)],
)
def test_the_dataset_has_the_same_batches(
    four_shards, split, first_step, host, num_hosts
):
    """Also checks its element_spec, cardinality and composition."""
    made = four_shards.with_phase(0, global_batch_size=12)
    options = {
        "split": split,
        "seed": 1,
        "phase_index": 0,
        "first_step": first_step,
        "host": host,
        "num_hosts": num_hosts,
    }
    dataset = pipeline.dataset(made.corpus, made.config, **options)
    spec = dataset.element_spec
    for name, (shape, dtype) in pipeline.batch_shapes(made.config.phases[0]).items():
        assert spec[name].shape.as_list() == [12 // num_hosts, shape[1]]
        assert spec[name].dtype == dtype
    assert dataset.cardinality() == -1  # infinite
    expected = made.batches(20, **options)
    for _ in range(2):  # each iterator starts at the same step
        assert_equal(list(dataset.take(20).as_numpy_iterator()), expected)
    composed = dataset.map(lambda batch: batch["input_ids"] * 2).prefetch(1).take(3)
    for ids, batch in zip(composed, expected, strict=False):
        np.testing.assert_array_equal(ids, batch["input_ids"] * 2)


def test_an_error_of_the_dataset_names_the_corrupt_shard(tmp_path):
    made = Made(tmp_path / "made", 1, 5)
    (shard,) = made.corpus.shards["train"]
    (tmp_path / "made" / "corpus" / shard.file).unlink()
    dataset = pipeline.dataset(
        made.corpus, made.config, split="train", seed=1, phase_index=0, first_step=0
    )
    with pytest.raises(Exception, match=f"{shard.file} is missing"):
        next(iter(dataset))


# -------------------------------------------------------------------- shutdown


ABANDON = """
import json, sys
from bert_jax import config
from bert_jax.data.batches import pipeline
from bert_jax.data.corpus import corpus

config = config.from_saved(json.load(open(sys.argv[1])))
batches = pipeline.batches(
    corpus.read(config), config, split="train", seed=0, phase_index=0, first_step=0
)
for _ in range(int(sys.argv[2])):
    next(batches)
if len(sys.argv) > 3:
    raise SystemExit(int(sys.argv[3]))
"""


@pytest.mark.parametrize("arguments", [["20"], slow(["3", "7"])])
@pytest.mark.slow
def test_a_program_ends_while_batches_are_being_made(four_shards, tmp_path, arguments):
    """Running threads must not block the exit of the interpreter."""
    path = tmp_path / "config.json"
    path.write_text(four_shards.config.to_json())
    done = run_code(ABANDON, str(path), *arguments)
    assert (done.returncode, done.stderr) == (int([0, *arguments[1:]][-1]), "")


def test_a_shard_that_becomes_corrupt_is_named(tmp_path):
    """The shard becomes corrupt after the corpus was opened and verified."""
    made = Made(tmp_path / "made", 1, 5)
    (shard,) = made.corpus.shards["train"]
    path = tmp_path / "made" / "corpus" / shard.file
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(errors.ConfigError, match=shard.file):
        made.batches(1)


def test_the_thread_of_a_closed_iterator_ends(four_shards):
    before = set(threading.enumerate())
    iterators = [
        corpora.batches(four_shards.corpus, four_shards.config) for _ in range(6)
    ]
    for number, iterator in enumerate(iterators):
        for _ in range(1 + number % 3):
            next(iterator)
        iterator.close()
    mine = [x for x in set(threading.enumerate()) - before if x.name == "batches"]
    for thread in mine:
        thread.join(60)
        assert not thread.is_alive()


def test_any_error_of_the_thread_reaches_the_caller(four_shards, monkeypatch):
    def fail(*_):
        raise ImportError("no TensorFlow")

    monkeypatch.setattr(pipeline, "_dataset", fail)
    with pytest.raises(ImportError, match="no TensorFlow"):
        four_shards.batches(1)
