"""Tests of bert_jax.data.corpus.vocabulary."""

import collections
import gzip
import json

import pyarrow
import pytest
from pyarrow import parquet

from bert_jax.data.corpus import vocabulary
from bert_jax.data.corpus.vocabulary import Sampled
from bert_jax.data.sources import sources
from bert_jax.data.tokenizers import training
from bert_jax.errors import ConfigError
from tests.corpora import changed, make_config, make_documents, write_source

KB = 1000


@pytest.fixture(autouse=True)
def short_excerpts(monkeypatch):
    monkeypatch.setattr(vocabulary, "EXCERPT_BYTES", KB)
    monkeypatch.setattr(vocabulary, "PARQUET_EXCERPT_BYTES", KB)


# ---------------------------------------------------------------------- the sample


@pytest.fixture
def sample(tmp_path):
    """Returns a function that returns the sampled lines and `Sampled` per source."""

    def sample(max_bytes, *specs):
        data = {"max_line_bytes": 2**14, "max_document_bytes": 2**16}
        config = changed(make_config(tmp_path), "data", sources=specs, **data)
        inputs = sources.find(config.data.sources)
        found, lines = [], [[] for _ in specs]
        for document in vocabulary.sample(config.data, inputs, max_bytes, found):
            lines[len(found) - 1] += document.lines
        for of_source, sampled in zip(lines, found, strict=True):
            assert sum(len(line.encode()) + 1 for line in of_source) == sampled.bytes
        assert sum(sampled.bytes for sampled in found) <= max_bytes
        return lines, found

    return sample


def numbered(count, word="line"):
    """Returns `count` lines of 20 bytes each, including the line end."""
    return [f"{word} {i:0{18 - len(word)}d}" for i in range(count)]


def write(path, lines, pack=bytes):
    path.write_bytes(pack("".join(f"{line}\n" for line in lines).encode()))


def test_the_unused_share_of_a_small_source_goes_to_others(tmp_path, sample):
    write(tmp_path / "a.txt", numbered(50, "a"))  # 1 kB
    write(tmp_path / "b.txt", numbered(1000, "b"))
    (a, b), found = sample(10 * KB, f"text:{tmp_path}/a.txt", f"text:{tmp_path}/b.txt")
    assert a == numbered(50, "a") and b[:400] == numbered(1000, "b")[:400]
    assert found[0] == Sampled(1, KB, True)
    assert 8.5 * KB < found[1].bytes <= 9 * KB and not found[1].is_everything


def test_each_file_of_a_source_is_read(tmp_path, sample):
    """A small file, possibly in another language, is sampled besides large ones."""
    for name, count in {"a": 4000, "b": 40, "c": 8000}.items():
        write(tmp_path / f"{name}.txt", numbered(count, name))
    (found,), _ = sample(10 * KB, f"text:{tmp_path}/?.txt")
    counts = collections.Counter(line[0] for line in found)
    assert counts["b"] == 40
    assert 200 < counts["a"] < 240 and 200 < counts["c"] < 240


def test_the_start_of_a_long_document_is_taken(tmp_path, sample):
    """Regression test: 20 books longer than the share of a source gave no text."""
    specs = []
    for i in range(20):
        (tmp_path / f"{i}.txt").write_text("word " * KB)  # one line of 5 kB
        specs.append(f"files:{tmp_path}/{i}.txt")
    _, found = sample(20 * KB, *specs)
    assert all(0.9 * KB < sampled.bytes <= KB for sampled in found)


def json_lines(path, count, length):
    texts = [f"{i}" + " word" * (length // 5) for i in range(count)]
    write(path, [json.dumps({"n": i, "text": text}) for i, text in enumerate(texts)])
    return texts


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
@pytest.mark.parametrize("count, length", [(1000, 80), (40, 3 * KB)])
def test_large_files_are_read_in_parts(tmp_path, sample, kind, count, length):
    """Of a document longer than an excerpt, the start is taken."""
    texts = json_lines(tmp_path / "a.jsonl", count, length)
    table = pyarrow.table({"text": texts})
    options = {"compression": "none", "use_dictionary": False}
    options |= {"row_group_size": count // 40, "write_statistics": False}
    parquet.write_table(table, tmp_path / "a.parquet", **options)
    (found,), (sampled,) = sample(10 * KB, f"{kind}:{tmp_path}/a.{kind}#text")
    numbers = [int(line.split()[0]) for line in found]
    assert len(set(numbers)) == len(numbers) and not sampled.is_everything
    assert all(
        texts[i].startswith(line) for i, line in zip(numbers, found, strict=True)
    )
    # The size of the text of a Parquet file is overestimated threefold here.
    num_places = len({10 * i // count for i in numbers})
    assert num_places >= (9 if kind == "jsonl" else 3)
    assert sum(map(len, found)) > 5 * KB


def test_no_file_is_opened_after_the_share_of_a_source(tmp_path, sample, monkeypatch):
    """The sizes of compressed files are estimated, here as less than a third."""
    for i in range(10):
        write(tmp_path / f"{i}.txt.gz", numbered(1000), gzip.compress)
    read, paths = sources.read, []

    def noted(spec, data, counts, files):
        paths.extend(path for path, _ in files)
        return read(spec, data, counts, files)

    monkeypatch.setattr(sources, "read", noted)
    _, (sampled,) = sample(101 * KB, f"text:{tmp_path}/*.gz")
    assert len(paths) == 6 and not sampled.is_everything
    assert 100 * KB < sampled.bytes <= 101 * KB


@pytest.mark.parametrize("name", ["a.txt.gz", "a.txt"])
def test_a_compressed_file_is_read_from_its_start(tmp_path, sample, name):
    write(tmp_path / name, numbered(50_000), gzip.compress)
    (found,), (sampled,) = sample(5 * KB, f"text:{tmp_path}/{name}")
    assert found[:200] == numbered(200) and not sampled.is_everything


def test_lines_that_cannot_be_read(tmp_path, sample):
    """Inside a file they are skipped: preparing it reports them, with their numbers."""
    lines = [json.dumps({"text": line}) for line in numbered(1000)]
    write(tmp_path / "a.jsonl", [*lines[:600], *["{"] * 100, *lines[600:]])
    (found,), _ = sample(10 * KB, f"jsonl:{tmp_path}/a.jsonl#text")
    assert found[0] == numbered(1)[0] and found[-1] > numbered(1000)[800]
    write(tmp_path / "b.jsonl", ["{", *lines])
    with pytest.raises(ConfigError, match="b.jsonl:1 is not JSON"):
        sample(10 * KB, f"jsonl:{tmp_path}/b.jsonl#text")


# ----------------------------------------------------------------------- training


@pytest.fixture
def two_sources(tmp_path):
    """A config with two sources that share no words, and their documents."""
    specs = tuple(f"text:{tmp_path}/{name}.txt" for name in "ab")
    config = make_config(tmp_path, sources=specs)
    parts = [
        [["start", *document] for document in make_documents(100)],
        [["start", *(s.replace("w", "v") for s in d)] for d in make_documents(100)],
    ]
    for number, part in enumerate(parts):
        write_source(config, part, number)
    return changed(config, "tokenizer", vocab_file="", vocab_size=120), parts


def train(config, directory):
    found = sources.find(config.data.sources)
    directory.mkdir(exist_ok=True)
    return vocabulary.train(config, found, str(directory))


def test_a_small_text_is_trained_on_as_a_whole_and_once(
    two_sources, tmp_path, monkeypatch, capsys
):
    config, parts = two_sources
    made = train(config, tmp_path / "work")
    documents = [document for part in parts for document in part]
    sizes = [sum(len(s) + 1 for d in part for s in d) for part in parts]
    assert made[0] == training.train(documents, config.tokenizer)
    assert made[1] == {
        "documents": 200,
        "bytes": sum(sizes),
        "is_everything": True,
        "sources": [
            {"documents": 100, "bytes": size, "is_everything": True} for size in sizes
        ],
    }
    start, end = capsys.readouterr().out.splitlines()
    assert start == "tokenizer: training 120 pieces (wordpiece) ..."
    assert end.endswith(" s")
    monkeypatch.setattr(training, "train", None)
    assert train(config, tmp_path / "work") == made


def test_a_large_text_is_sampled_from_each_source(two_sources, monkeypatch, tmp_path):
    config, parts = two_sources
    monkeypatch.setitem(training.TRAINING_BYTES, "wordpiece", 4000)
    tokenizer, trained_on = train(config, tmp_path / "work")
    assert 3000 < trained_on["bytes"] <= 4000 and not trained_on["is_everything"]
    for sampled in trained_on["sources"]:
        assert 1500 < sampled["bytes"] <= 2000 and not sampled["is_everything"]
    assert train(config, tmp_path / "again") == (tokenizer, trained_on)
