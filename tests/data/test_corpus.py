"""Tests of bert_jax.data.corpus, and of bert_jax.prepare around it."""

import itertools
import json
import math
import os
import random

import numpy as np
import pytest

from bert_jax import config as config_lib
from bert_jax import prepare
from bert_jax.config import ConfigError
from bert_jax.data import corpus, corpus_writer, packing, pairs, tokenizers
from configs import tiny

WORDS = [f"w{i}" for i in range(50)]


def make_config(directory, vocab_size=55, **data):
    """A config of a two-shard corpus whose vocabulary file holds WORDS."""
    vocab = [*tokenizers.SPECIAL_TOKENS, *WORDS]
    vocab += [f"[unused{i}]" for i in range(vocab_size - len(vocab))]
    path = directory / f"vocab-{vocab_size}.txt"
    path.write_text("\n".join(vocab) + "\n")
    config = tiny.get_config()
    config.data.update(
        {
            "sources": (f"text:{directory}/text.txt",),
            "corpus_dir": str(directory / "corpus"),
            "num_shards": 2,
            "num_streams": 2,
            "validation_fraction": 0.2,
        }
    )
    config.data.update(data)
    config.tokenizer.vocab_file = str(path)
    config.tokenizer.vocab_size = vocab_size
    return config_lib.from_config_dict(config)


def make_documents(count, seed=0, max_sentences=8):
    rng = random.Random(seed)
    return [
        [
            " ".join(rng.choices(WORDS, k=rng.randint(1, 9)))
            for _ in range(rng.randint(1, max_sentences))
        ]
        for _ in range(count)
    ]


def write(config, documents):
    corpus_writer.write(
        config, tokenizers.load(config.tokenizer), documents, lambda *counts: None
    )


def load_text(found, split, i):
    """Returns the documents of a shard as text, through the ids."""
    tokens, documents = found.load(found.shards[split][i])
    words = [found.tokenizer.vocab[token] for token in tokens]
    sentences = [
        " ".join(words[start:stop])
        for start, stop in zip(
            documents.token_offsets[:-1], documents.token_offsets[1:], strict=True
        )
    ]
    return [
        sentences[start:stop]
        for start, stop in zip(
            documents.sentence_offsets[:-1], documents.sentence_offsets[1:], strict=True
        )
    ]


def places(found):
    """Returns {document: (split, shard file)}, and checks that each has one place."""
    result = {}
    for split, shards in found.shards.items():
        for i, shard in enumerate(shards):
            for document in load_text(found, split, i):
                place = (split, shard.file)
                assert result.setdefault(tuple(document), place) == place
    return result


@pytest.fixture
def written(tmp_path):
    """A config, its documents and its corpus."""
    config, documents = make_config(tmp_path), make_documents(60)
    write(config, documents)
    return config, documents, corpus.read(config)


def fails(config, documents, message):
    """Checks that no trace is left, not even the directory."""
    with pytest.raises(ConfigError, match=message):
        write(config, documents)
    assert not os.path.exists(config.data.corpus_dir)


def assert_nothing_left(directory):
    """A directory that was not there before may be gone again."""
    assert not corpus.exists(directory)
    if not os.path.exists(directory):
        return
    assert not [name for name in os.listdir(directory) if name.endswith(".tmp")]


# ------------------------------------------------------------- write, read, load


def test_round_trip(written):
    config, documents, found = written
    loaded = [
        document
        for split, shards in found.shards.items()
        for i in range(len(shards))
        for document in load_text(found, split, i)
    ]
    assert sorted(loaded) == sorted(documents)
    assert found.tokenizer == tokenizers.load(config.tokenizer)
    assert len(found.shards["train"]) == 2
    assert len(found.shards["validation"]) == 1


def test_files_of_a_corpus(written):
    config, _, _ = written
    assert sorted(os.listdir(config.data.corpus_dir)) == [
        "manifest.json",
        "train-00000-of-00002",
        "train-00001-of-00002",
        "validation-00000-of-00001",
        "vocab.txt",
    ]


def test_manifest_counts(written):
    _, documents, found = written
    shards = [shard for shards in found.shards.values() for shard in shards]
    sentences = [sentence for document in documents for sentence in document]
    assert sum(shard.num_documents for shard in shards) == len(documents)
    assert sum(shard.num_sentences for shard in shards) == len(sentences)
    assert sum(s.num_tokens for s in shards) == sum(len(s.split()) for s in sentences)
    for shard, name in itertools.product(shards, ("next_sentence", "masked_lm_only")):
        passes = shard.passes[name]
        assert [*map(int, passes)] == list(corpus_writer.REFERENCE_LENGTHS)
        full, short = np.array([p["rows"]["1"] for p in passes.values()]).T
        spread = np.array([p["spread"] for p in passes.values()])
        assert min(*full, *short) >= shard.num_documents
        assert full[0] > full[-1] and short[0] > short[-1]  # longer rows, fewer
        assert (short[:3] > full[:3]).all()
        # Of differences that sum to short - full.
        assert (spread >= (short - full) ** 2 / shard.num_documents).all()


def test_short_documents_are_counted_one_by_one(tmp_path):
    """A document of one sentence makes one pair, short or not."""
    short_ones = [[word] for word in WORDS]
    config = make_config(tmp_path, num_shards=1, num_streams=1, validation_fraction=0.0)
    write(config, [*short_ones, ["w1 w2"] * 200])
    (shard,) = corpus.read(config).shards["train"]
    passes = shard.passes["next_sentence"].values()
    counts = np.array([found["rows"]["1"] for found in passes])
    assert (counts > len(short_ones)).all()
    differences = counts[:, 1] - counts[:, 0]  # all of them the long document's
    assert differences.any()
    assert [found["spread"] for found in passes] == (differences**2).tolist()


def rows_per_epoch(shard, length, short_seq_prob, per_row=1, next_sentence=True):
    """Asks as the pipeline does."""
    config = tiny.get_config()
    config.data.short_seq_prob = short_seq_prob
    config.data.next_sentence = next_sentence
    config.model.max_position_embeddings = 512
    config.phases[0].update(
        sequence_length=length,
        max_predictions=max(length // 2, 8),
        max_sequences_per_row=per_row,
    )
    made = config_lib.from_config_dict(config)
    return shard.rows_per_epoch(made.data, made.phases[0])


def make_shard(counts):
    """A manifest entry of these rows and spreads by length."""
    passes = {
        length: {"rows": rows, "tokens": [0, 0], "spread": spread}
        for length, (rows, spread) in counts.items()
    }
    return corpus.Shard("s", 1, 1, 1, {"next_sentence": passes}, "")


def test_rows_per_epoch_is_the_expected_number_and_two_deviations():
    """Also between two lengths of the manifest, where pairs go by a power law."""
    shard = make_shard(
        {
            "16": ({"1": [400, 800]}, 0),
            "64": ({"1": [100, 200]}, 0),
            "256": ({"1": [25, 50]}, 0),
        }
    )
    for length, full in ((16, 400), (32, 200), (64, 100), (128, 50), (256, 25)):
        for p in (0.0, 0.1, 0.5):
            rows = full * (1 + p) + 2 * math.sqrt(full * (1 + p))
            assert rows - 0.1 <= rows_per_epoch(shard, length, p) < rows + 1.1
    # And which documents are short: half of 100 that make 4 more pairs each, say.
    shard = make_shard({"64": ({"1": [100, 500]}, 1600)})
    assert 300 + 2 * math.sqrt(400) <= rows_per_epoch(shard, 64, 0.5)
    # Packed two and more to a row: fewer rows, and as much fewer deviate.
    shard = make_shard({"64": ({"1": [900, 900], "2": [450, 450], "8": [300, 300]}, 0)})
    assert rows_per_epoch(shard, 64, 0.0, per_row=2) == 450 + 30
    assert rows_per_epoch(shard, 64, 0.0, per_row=32) == 300 + 20


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """The shape of a shard of long and short documents, and its manifest entry."""
    config = make_config(
        tmp_path_factory.mktemp("large"),
        num_shards=1,
        num_streams=1,
        validation_fraction=0.0,
    )
    write(config, make_documents(6000, max_sentences=60))
    found = corpus.read(config)
    (shard,) = found.shards["train"]
    return shard, found.load(shard)[1], config.data.corpus_dir


@pytest.mark.parametrize("short_seq_prob", [0.0, 0.1, 0.5])
@pytest.mark.parametrize("length", [32, 90, 128, 512])
@pytest.mark.parametrize(
    "next_sentence, per_row", [(True, 1), (False, 1), (True, 3), (True, 6), (False, 8)]
)
def test_rows_per_epoch_is_a_little_more_than_a_pass(
    large, length, short_seq_prob, next_sentence, per_row
):
    """Too few rows would leave pairs out in each epoch, too many repeat some.

    90 is no length of the manifest, 6 no number of pairs in a row.
    """
    shard, documents, _ = large
    rows = rows_per_epoch(shard, length, short_seq_prob, per_row, next_sentence)
    draw = pairs.draw_pairs if next_sentence else pairs.draw_segments
    passes = []
    for i in range(8):
        drawn = draw(documents, length, short_seq_prob, pairs.CounterRandom(1, i))
        passes.append(packing.num_rows(drawn.lengths, length, per_row))
    # Between two lengths, and where short pairs and full ones share rows, the estimate
    # is a few percent high.
    is_direct = length != 90 and per_row == 1
    assert (0.96 if is_direct else 0.92) * rows <= np.mean(passes) <= rows
    assert (np.array(passes) > 1.01 * rows).sum() <= 1


def test_manifest_says_how_much_of_rows_is_text(large):
    """Held against rows that are counted one by one."""
    _, documents, directory = large
    with open(os.path.join(directory, "manifest.json")) as file:
        found = json.load(file)["padding_efficiency"]
    for name, draw in (
        ("next_sentence", pairs.draw_pairs),
        ("masked_lm_only", pairs.draw_segments),
    ):
        drawn = draw(documents, 128, 0.1, pairs.CounterRandom(5))
        assert found[name]["128"]["1"] == pytest.approx(
            drawn.lengths.mean() / 128, 0.01
        )
        rows = packing.pack(drawn.lengths, 128, 8)
        assert found[name]["128"]["8"] == pytest.approx(
            drawn.lengths.sum() / len(rows) / 128, 0.01
        )


def test_several_records_a_shard(tmp_path, monkeypatch, written):
    """Blocks only bound memory: the documents are those of one block."""
    _, documents, one_block = written
    monkeypatch.setattr(corpus_writer, "BLOCK_TOKENS", 40)
    monkeypatch.setattr(corpus_writer, "BATCH_DOCUMENTS", 7)
    config = make_config(tmp_path, corpus_dir=str(tmp_path / "blocks"))
    write(config, documents)
    found = corpus.read(config)
    for split in ("train", "validation"):
        assert load_text(found, split, 0) == load_text(one_block, split, 0)
        assert found.shards[split][0].sha256 != one_block.shards[split][0].sha256


def test_same_documents_same_files(tmp_path, written):
    _, documents, first = written
    config = make_config(tmp_path, corpus_dir=str(tmp_path / "again"))
    write(config, documents)
    second = corpus.read(config)
    assert second.sha256 == first.sha256
    for shard in first.shards["train"]:
        files = [os.path.join(found.directory, shard.file) for found in (first, second)]
        contents = [open(file, "rb").read() for file in files]
        assert contents[0] == contents[1]


def test_sentences_without_tokens_are_dropped(tmp_path):
    """A sentence of white space only has no token, a document of those no sentence."""
    config = make_config(tmp_path, num_shards=1, num_streams=1, validation_fraction=0.0)
    write(config, [["w1 w2", " ", "w3"], [" ", "\u200b"], [], ["w4", "w5"]])
    found = corpus.read(config)
    assert load_text(found, "train", 0) == [["w1 w2", "w3"], ["w4", "w5"]]
    with open(os.path.join(found.directory, "manifest.json")) as file:
        assert json.load(file)["documents"] == {"read": 4, "empty": 2}


@pytest.mark.parametrize(
    "vocab_size, dtype", [(65_536, np.uint16), (65_537, np.uint32)]
)
def test_ids_are_as_wide_as_the_vocabulary_needs(tmp_path, vocab_size, dtype):
    config = make_config(
        tmp_path, vocab_size, num_shards=1, num_streams=1, validation_fraction=0.0
    )
    vocab = tokenizers.load(config.tokenizer).vocab
    last = tokenizers.WordPiece((*vocab[:-1], "last"), lowercase=True)
    corpus_writer.write(
        config, last, [["w1", "last w2"], ["w3", "w4"]], lambda *counts: None
    )
    path = config.tokenizer.vocab_file
    with open(path, "w") as file:
        file.write("\n".join(last.vocab) + "\n")
    found = corpus.read(config)
    tokens, _ = found.load(found.shards["train"][0])
    assert tokens.dtype == dtype
    assert vocab_size - 1 in tokens


# ------------------------------------------------------------- where documents go


def test_place_does_not_depend_on_order(tmp_path, written):
    _, documents, found = written
    config = make_config(tmp_path, corpus_dir=str(tmp_path / "shuffled"))
    write(config, random.Random(1).sample(documents, len(documents)))
    assert places(corpus.read(config)) == places(found)


def test_place_does_not_depend_on_other_documents(tmp_path, written):
    """More text later must not move held-out documents to the training split."""
    _, documents, found = written
    config = make_config(tmp_path, corpus_dir=str(tmp_path / "more"))
    write(config, make_documents(30, seed=1) + documents)
    assert places(found).items() <= places(corpus.read(config)).items()


def test_equal_documents_stay_together(tmp_path):
    documents = make_documents(20)
    config = make_config(tmp_path)
    write(config, documents * 3)
    found = corpus.read(config)
    assert len(places(found)) == len(set(map(tuple, documents)))
    assert sum(s.num_documents for s in found.shards["train"]) % 3 == 0


def test_documents_are_dealt_fairly(tmp_path):
    config = make_config(tmp_path, num_shards=4)
    write(config, make_documents(1200))
    found = corpus.read(config)
    # Binomial: 240 held out of 1,200, sd 14; about 240 a shard, sd 14.
    for shard in (*found.shards["train"], *found.shards["validation"]):
        assert abs(shard.num_documents - 240) < 70


def test_no_validation_split(tmp_path):
    config = make_config(tmp_path, validation_fraction=0.0)
    write(config, make_documents(20))
    assert corpus.read(config).shards["validation"] == ()


# ------------------------------------------------------------------------ prepare


def write_source(config, documents):
    path = config.data.sources[0].removeprefix("text:")
    with open(path, "w") as file:
        file.write("\n\n".join("\n".join(document) for document in documents))


def test_prepare_reads_the_sources(tmp_path):
    config, documents = make_config(tmp_path), make_documents(60)
    write_source(config, documents)
    found = prepare.prepare(config)
    assert sorted(places(found)) == sorted(set(map(tuple, documents)))


def test_prepare_again_does_nothing(tmp_path, capsys):
    config = make_config(tmp_path)
    write_source(config, make_documents(60))
    first = prepare.prepare(config)
    before = {file.name: file.stat() for file in os.scandir(config.data.corpus_dir)}
    os.remove(tmp_path / "text.txt")  # not even read
    assert prepare.prepare(config) == first
    after = {file.name: file.stat() for file in os.scandir(config.data.corpus_dir)}
    assert {k: v.st_mtime_ns for k, v in after.items()} == {
        k: v.st_mtime_ns for k, v in before.items()
    }
    assert "prepared already" in capsys.readouterr().out


@pytest.mark.parametrize("max_bytes", [prepare.SMALL_BYTES, 100])
def test_prepare_trains_a_vocabulary(tmp_path, monkeypatch, max_bytes):
    """A text too large to remember is read a second time, with the same result."""
    monkeypatch.setattr(prepare, "SMALL_BYTES", max_bytes)
    config = make_config(tmp_path)
    tokenizer = {"kind": "wordpiece", "vocab_file": "", "vocab_size": 90}
    config = config_lib.from_config_dict(
        json.loads(config.to_json()) | {"tokenizer": tokenizer | {"lowercase": True}}
    )
    documents = make_documents(60)
    write_source(config, documents)
    found = prepare.prepare(config)
    assert len(found.tokenizer.vocab) == 90
    assert sum(
        shard.num_documents for shards in found.shards.values() for shard in shards
    ) == len(documents)
    assert corpus.read(config).tokenizer == found.tokenizer


def test_is_small(tmp_path, monkeypatch):
    config = make_config(tmp_path)
    write_source(config, make_documents(60))
    assert prepare.is_small(config)
    monkeypatch.setattr(prepare, "SMALL_BYTES", 100)
    assert not prepare.is_small(config)


# ------------------------------------------------------------------------ failures


class Interrupted(BaseException):
    """As KeyboardInterrupt: not an Exception."""


def test_failure_while_reading_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(corpus_writer, "BLOCK_TOKENS", 1)  # every document goes to disk
    monkeypatch.setattr(corpus_writer, "BATCH_DOCUMENTS", 1)
    config = make_config(tmp_path)
    seen = []

    def documents():
        yield from make_documents(30)
        seen.extend(os.listdir(config.data.corpus_dir))
        raise Interrupted

    with pytest.raises(Interrupted):
        write(config, documents())
    assert [name for name in seen if name.endswith(".tmp")]
    assert_nothing_left(config.data.corpus_dir)
    write(config, make_documents(30))  # and the directory can be used
    assert len(corpus.read(config).shards["train"]) == 2


@pytest.mark.parametrize(
    "name", ["train-00001-of-00002", "validation-00000-of-00001", "vocab.txt"]
)
def test_failure_while_finishing_leaves_no_manifest(tmp_path, name):
    """A directory that is in the way of a file makes its renaming fail."""
    config = make_config(tmp_path)
    (tmp_path / "corpus" / name / "x").mkdir(parents=True)
    with pytest.raises(Exception, match=name):
        write(config, make_documents(30))
    assert_nothing_left(config.data.corpus_dir)


def test_progress_counts_documents_and_bytes(tmp_path):
    config, documents = make_config(tmp_path), make_documents(600)
    documents[7] = ["\u4f60\u597d", "w1"]  # six bytes of UTF-8, two characters
    calls = []
    corpus_writer.write(
        config,
        tokenizers.load(config.tokenizer),
        documents,
        lambda *counts: calls.append(counts),
    )
    assert calls == sorted(calls) and len(calls) == 3
    assert calls[-1] == (600, sum(len("\n".join(d).encode()) for d in documents))


# --------------------------------------------------------- not enough to draw from


def test_empty_source(tmp_path):
    config = make_config(tmp_path)
    fails(config, [], r"text.txt\) gave 0 documents, none with text")
    fails(config, [[], [" "]], r"text.txt\) gave 2 documents, none with text")


def test_single_sentence_documents_only(tmp_path):
    documents = [[word] for word in WORDS]
    fails(make_config(tmp_path), documents, "50 document.*none with two sentences")


def test_one_document(tmp_path):
    config = make_config(tmp_path, num_shards=1, num_streams=1, validation_fraction=0.0)
    fails(config, [["w1", "w2", "w3"]], r"gave 1 training document\(s\)")


@pytest.mark.parametrize("num_shards, count", [(2, 3), (64, 30)])
def test_a_shard_of_fewer_than_two_documents(tmp_path, num_shards, count):
    """Its random next sentences would come from the document itself."""
    config = make_config(
        tmp_path, num_shards=num_shards, num_streams=1, validation_fraction=0.0
    )
    documents = [["w1 w2", f"w{i}", "w3"] for i in range(count)]
    message = (
        rf"num_shards={num_shards} leaves \d+ shard\(s\) with fewer than 2 of the"
        rf" {count} training documents.*num_shards=1 and config.data.num_streams=1"
    )
    fails(config, documents, message)


def test_a_directory_that_was_there_is_kept(tmp_path):
    config = make_config(tmp_path)
    os.mkdir(config.data.corpus_dir)
    with pytest.raises(ConfigError, match="gave 0 documents"):
        write(config, [])
    assert os.listdir(config.data.corpus_dir) == []


def test_nothing_held_out(tmp_path):
    config = make_config(tmp_path, validation_fraction=1e-6)
    fails(config, make_documents(30), "validation_fraction=1e-06 held out none of 30")


# ------------------------------------------------------------- read: what differs


def changed(config, section, **values):
    tree = json.loads(config.to_json())
    tree[section] |= values
    return config_lib.from_config_dict(tree)


@pytest.mark.parametrize(
    "section, key, value, message",
    [
        ("data", "sources", ["text:b"], r"data.sources=\['text:b'\].*text.txt'\]"),
        ("data", "num_shards", 4, "data.num_shards=4, .* made with 2;"),
        ("data", "validation_fraction", 0.1, "validation_fraction=0.1, .* with 0.2;"),
        ("tokenizer", "vocab_size", 56, "tokenizer.vocab_size=56, .* made with 55;"),
        ("tokenizer", "lowercase", False, "lowercase=False, .* made with True;"),
        ("tokenizer", "vocab_file", "", "vocab_file='', .* with a vocabulary file;"),
    ],
)
def test_corpus_of_another_recipe(written, section, key, value, message):
    config, _, _ = written
    with pytest.raises(ConfigError, match=f"config.*{message}.*corpus_dir"):
        corpus.read(changed(config, section, **{key: value}))


def test_corpus_with_a_trained_vocabulary(tmp_path):
    config = make_config(tmp_path)
    trained = changed(config, "tokenizer", vocab_file="")
    write_source(config, make_documents(60))
    prepare.prepare(trained)
    message = "vocab_file='.*vocab-55.txt', .* made with a vocabulary trained on it"
    with pytest.raises(ConfigError, match=message):
        corpus.read(config)


def test_settings_that_are_not_of_the_corpus_may_change(written):
    config, _, found = written
    other = changed(config, "data", num_streams=1, short_seq_prob=0.3)
    assert corpus.read(other) == found


def test_another_vocabulary_file_of_the_same_size(tmp_path, written):
    config, _, _ = written
    vocab = [*tokenizers.SPECIAL_TOKENS, *reversed(WORDS)]
    (tmp_path / "other.txt").write_text("\n".join(vocab))
    other = changed(config, "tokenizer", vocab_file=str(tmp_path / "other.txt"))
    with pytest.raises(ConfigError, match="other.txt' is not the vocabulary of"):
        corpus.read(other)


def test_vocabulary_of_the_corpus_was_edited(written):
    config, _, found = written
    path = os.path.join(found.directory, "vocab.txt")
    with open(path, "a") as file:
        file.write("more\n")
    with pytest.raises(ConfigError, match="vocab.txt is not the vocabulary that"):
        corpus.read(config)


def test_no_corpus(tmp_path):
    config = make_config(tmp_path)
    with pytest.raises(ConfigError, match="corpus_dir='.*corpus' has no manifest.json"):
        corpus.read(config)


def rewrite_manifest(found, **values):
    path = os.path.join(found.directory, "manifest.json")
    with open(path) as file:
        manifest = json.load(file)
    with open(path, "w") as file:
        json.dump(manifest | values, file)


def test_newer_format(written):
    config, _, found = written
    newer = corpus.FORMAT_VERSION + 1
    rewrite_manifest(found, format_version=newer)
    with pytest.raises(ConfigError, match=f"format_version {newer}, this code reads"):
        corpus.read(config)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"{}", b"3", b"\xff\xfe"])
def test_damaged_manifest(written, content):
    config, _, found = written
    path = os.path.join(found.directory, "manifest.json")
    with open(path, "wb") as file:
        file.write(content)
    with pytest.raises(ConfigError, match="manifest.json is not a corpus manifest"):
        corpus.read(config)


# ------------------------------------------------------------- load: damaged files


@pytest.mark.parametrize("keep", [0, 5, 0.5, -1])
def test_truncated_shard(written, keep):
    """Of nothing, of a record's header, of its middle, of its end."""
    _, _, found = written
    shard = found.shards["train"][0]
    path = os.path.join(found.directory, shard.file)
    size = os.path.getsize(path)
    cut = int(size * keep) if isinstance(keep, float) else keep % size
    os.truncate(path, cut)
    with pytest.raises(ConfigError, match="train-00000-of-00002 .*prepare the corpus"):
        found.load(shard)


def test_shard_without_its_last_record(tmp_path, monkeypatch):
    monkeypatch.setattr(corpus_writer, "BLOCK_TOKENS", 200)
    config = make_config(tmp_path)
    write(config, make_documents(60))
    found = corpus.read(config)
    shard = found.shards["train"][0]
    path = os.path.join(found.directory, shard.file)
    with open(path, "rb") as file:
        first_record = int.from_bytes(file.read(8), "little") + 16
    assert first_record < os.path.getsize(path)
    os.truncate(path, first_record)
    with pytest.raises(ConfigError, match="train-00000.* its manifest says"):
        found.load(shard)


def test_flipped_bit(written):
    _, _, found = written
    shard = found.shards["train"][1]
    with open(os.path.join(found.directory, shard.file), "r+b") as file:
        file.seek(100)
        byte = file.read(1)[0]
        file.seek(100)
        file.write(bytes([byte ^ 1]))
    with pytest.raises(ConfigError, match="train-00001-of-00002 cannot be read"):
        found.load(shard)


def test_missing_shard(written):
    _, _, found = written
    shard = found.shards["validation"][0]
    os.remove(os.path.join(found.directory, shard.file))
    with pytest.raises(ConfigError, match="validation-00000-of-00001 cannot be read"):
        found.load(shard)


def test_without_next_sentence_a_document_is_enough(tmp_path):
    """And a corpus of one is not for training with next sentences."""
    alone = {"num_shards": 1, "num_streams": 1, "validation_fraction": 0.0}
    config = make_config(tmp_path, **alone, next_sentence=False)
    write(config, [["w1 w2 w3"]])
    (shard,) = corpus.read(config).shards["train"]
    assert shard.num_documents == 1
    with pytest.raises(ConfigError, match="next_sentence=True, but .* one document"):
        corpus.read(make_config(tmp_path, **alone))
    few = make_config(tmp_path, next_sentence=False, corpus_dir=str(tmp_path / "few"))
    with pytest.raises(ConfigError, match="num_shards=2 leaves 1 .* none of the 1 "):
        write(few, [["w1 w2 w3"]])
