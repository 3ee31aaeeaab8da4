"""Tests of bert_jax.data.corpus.encoding."""

import collections
import hashlib
import unicodedata

import numpy as np
import pytest

from bert_jax.data.corpus import encoding, keyed, shard_file
from bert_jax.data.sources.kind import Document
from bert_jax.data.tokenizers import tokenizers
from tests.conftest import make_config as model_config
from tests.corpora import changed, make_config, make_documents, raw, shard_of


def encode(config, documents, source=0):
    """Returns the entries of each document, and the counts."""
    counts = collections.Counter()
    encoder = encoding.DocumentEncoder(config.data, tokenizers.load(config.tokenizer))
    return [list(encoder(raw(d), source, counts)) for d in documents], counts


@pytest.fixture
def weighted(tmp_path):
    """Returns a function that makes configs of one source, a weight and four shards."""

    def make(weight):
        return make_config(tmp_path, num_shards=4, source_weights=(weight,))

    return make


def test_keys_and_ids_are_those_of_a_plain_reference(tmp_path):
    config = make_config(tmp_path)
    vocab = tokenizers.load(config.tokenizer).vocab
    documents = make_documents(200)
    encoded, counts = encode(config, documents)
    single = sum(len(document) == 1 for document in documents)
    assert counts == {
        "read": 200,
        "of_one_sentence": single,
        "tokens of source 0": sum(len(s.split()) for d in documents for s in d),
        "unknown tokens of source 0": 0,
    }
    for document, [entry] in zip(documents, encoded, strict=True):
        digest = hashlib.blake2b("\n".join(document).encode(), digest_size=16).digest()
        assert entry.key == digest and entry.copy == 0
        ids = [vocab.index(word) for s in document for word in s.split()]
        assert np.frombuffer(entry.token_ids, np.uint16).tolist() == ids
        lengths = np.frombuffer(entry.sentence_lengths, np.uint32).tolist()
        assert lengths == [len(sentence.split()) for sentence in document]


@pytest.mark.parametrize("weight", [0.25, 0.9, 1.0, 1.5, 3.0, 4.75])
def test_the_source_weight_is_the_mean_number_of_copies(weighted, weight):
    encoded, counts = encode(weighted(weight), make_documents(3000, max_sentences=3))
    train = [entries for entries in encoded if not is_held_out(entries)]
    sizes = np.array([len(entries) for entries in train])
    assert set(sizes.tolist()) == {int(weight), int(np.ceil(weight))}
    # About 2,400 coins: four standard deviations.
    fraction = weight % 1
    bound = 4 * np.sqrt(fraction * (1 - fraction) / len(train))
    assert abs(sizes.mean() - weight) <= bound
    assert counts["left_out"] == np.sum(sizes == 0)


def is_held_out(entries):
    """The held-out share of `weighted` is 0.2."""
    return any(keyed.number(entry.key) < 0.2 * 2**64 for entry in entries)


def test_held_out_documents_are_neither_copied_nor_left_out(weighted):
    documents = make_documents(500)
    held_out = [
        list(filter(is_held_out, encode(weighted(w), documents)[0]))
        for w in (0.1, 1.0, 3.5)
    ]
    assert held_out[0] == held_out[1] == held_out[2]
    assert 60 < len(held_out[0]) < 140  # a fifth of 500, binomial
    assert all(len(entries) == 1 for entries in held_out[0])


def test_copies_are_distinct_and_spread_over_all_shards(weighted):
    config = weighted(4.0)
    ranges = keyed.key_ranges(config.data, 1)
    encoded, _ = encode(config, make_documents(600))
    train = [entries for entries in encoded if not is_held_out(entries)]
    keys = {entry.key for entries in train for entry in entries}
    assert len(keys) == 4 * len(train)
    shards = np.array(
        [[shard_of(ranges, entry.key) - 1 for entry in entries] for entries in train]
    )
    for copy in range(4):
        counts = np.bincount(shards[:, copy], minlength=4)
        assert abs(counts - len(train) / 4).max() < 60  # sd 9.5
    for entries in train:
        assert [entry.copy for entry in entries] == [0, 1, 2, 3]
        assert len({entry.token_ids for entry in entries}) == 1
    # Where the copies of a document go does not depend on where it goes itself.
    pairs = np.zeros((4, 4))
    np.add.at(pairs, (shards[:, 0], shards[:, 1]), 1)
    assert pairs.min() > len(train) / 16 / 3


def test_documents_without_a_token_are_counted(tmp_path):
    encoded, counts = encode(make_config(tmp_path), [[], [" "], ["w1", "\u200b"]])
    assert [len(entries) for entries in encoded] == [0, 0, 1]
    assert counts == {
        "read": 3,
        "empty": 2,
        "of_one_sentence": 1,
        "documents_empty": 2,
        "tokens of source 0": 1,
        "unknown tokens of source 0": 0,
    }
    assert np.frombuffer(encoded[2][0].sentence_lengths, np.uint32).tolist() == [1]


# ------------------------------------------------------------ words of ideographs

SEGMENTED = [
    ["你好 世界 , bert 模型 。"],
    ["我 爱你", "berts 模世", "你我爱", "bert模世"],
]


def segmented_config(tmp_path, word_segmented, num_spare=0):
    config = make_config(tmp_path, word_segmented=word_segmented)
    pieces = [*"你好世界模型。爱,", "bert", "##s"]
    vocab = [*tokenizers.SPECIAL_TOKENS, *pieces]
    vocab += [f"[unused{i}]" for i in range(num_spare)]
    path = tmp_path / f"ideographs-{num_spare}.txt"
    path.write_text("\n".join(vocab) + "\n")
    return changed(config, "tokenizer", vocab_file=str(path), vocab_size=len(vocab))


@pytest.mark.parametrize("word_segmented", [False, True])
def test_unknown_tokens_are_counted_with_and_without_marks(tmp_path, word_segmented):
    """The vocabulary lacks one ideograph, which starts a word and continues another."""
    config = segmented_config(tmp_path, word_segmented)
    _, counts = encode(config, SEGMENTED, source=3)
    assert counts["tokens of source 3"] == 22
    assert counts["unknown tokens of source 3"] == 2


@pytest.mark.parametrize("num_spare, dtype", [(0, np.uint16), (40_000, np.uint32)])
def test_ideographs_that_continue_a_word_are_marked(tmp_path, num_spare, dtype):
    config = segmented_config(tmp_path, True, num_spare)
    tokenizer = tokenizers.load(config.tokenizer)
    assert encoding.id_dtype(tokenizer, config.data) == dtype
    plain = segmented_config(tmp_path, False, num_spare)
    assert encoding.id_dtype(tokenizer, plain.data) == np.uint16
    marked, _ = encode(config, SEGMENTED)
    unmarked, _ = encode(plain, SEGMENTED)
    texts = []
    for [entry], [expected] in zip(marked, unmarked, strict=True):
        assert entry.key == expected.key
        assert entry.sentence_lengths == expected.sentence_lengths
        ids, continues = shard_file.split_marks(np.frombuffer(entry.token_ids, dtype))
        assert ids.tolist() == np.frombuffer(expected.token_ids, np.uint16).tolist()
        texts.append(
            "".join(
                ("+" if mark else " ") + tokenizer.vocab[i]
                for i, mark in zip(ids, continues, strict=True)
            )
        )
    # The prefix ## shows that a piece continues a word. An unknown ideograph is only
    # recognized in a word that consists of ideographs.
    assert texts == [
        " 你+好 世+界 , bert 模+型 。",
        " [UNK] 爱+你 bert ##s 模+世 你+[UNK]+爱 bert 模+世",
    ]


# ------------------------------------------------------------------------- cleaning


def clean(*lines, is_split=False, max_line_bytes=2**20):
    """Returns the sentences and the counts."""
    data = model_config(data__max_line_bytes=max_line_bytes).data
    counts = collections.Counter()
    document = Document(lines, is_split)
    return encoding.clean_sentences(document, data, counts), dict(counts)


def test_clean_text_is_only_split():
    lines = ("One is first. Two is next.", "Café\tau lait.", "你好。再见")
    expected = ["One is first.", "Two is next.", lines[1], "你好。", "再见"]
    assert clean(*lines) == (expected, {})


def test_sentences_are_kept_as_given():
    lines = (" Two here. In a line. ", "Dr. No")
    assert clean(*lines, is_split=True) == (["Two here. In a line.", "Dr. No"], {})


def test_all_controls_but_tab_are_dropped_and_counted():
    """Category Cc of unicodedata is the reference; lines contain no line ends."""
    controls = [chr(c) for c in range(0x110000) if unicodedata.category(chr(c)) == "Cc"]
    controls = [c for c in controls if len(f"a{c}b".splitlines()) == 1]
    assert len(controls) == 65 - 8  # all but \n \v \f \r \x1c \x1d \x1e \x85
    for c in controls:
        found, counts = clean(f"a{c}b")
        expected = {"\t": "a\tb", "\x1f": "a b"}.get(c, "ab")
        assert found == [expected], repr(c)
        assert counts.get("control_characters_dropped", 0) == (expected == "ab")
    assert clean("\ufeffOne\ufeff.") == (["One."], {"control_characters_dropped": 2})


@pytest.mark.parametrize("form", ["NFD", "NFC"])
def test_characters_are_composed(form):
    text = "Ångström and 한국어 and ắ."
    found, counts = clean(unicodedata.normalize(form, text))
    assert found == [text]
    assert counts == ({"lines_composed": 1} if form == "NFD" else {})


@pytest.mark.parametrize("is_split", [False, True])
def test_long_lines_are_cut_and_counted(is_split):
    words = [f"w{i}" for i in range(2000)]
    found, counts = clean(" ".join(words), is_split=is_split, max_line_bytes=1024)
    assert " ".join(found).split() == words
    assert max(map(len, found)) <= 1024
    assert counts == {"lines_cut": 1}
