"""Tests of bert_jax.data.tokenizers.source_sample."""

import collections
import gzip
import html
import json

import pyarrow
import pytest
import tensorflow_datasets as tfds
from pyarrow import parquet

from bert_jax import storage
from bert_jax.data.sources import input_files
from bert_jax.data.tokenizers import source_sample
from bert_jax.errors import ConfigError
from tests.corpora import changed, make_config
from tests.data.sources.test_sources import tfds_directory  # noqa: F401

KB = 1000


@pytest.fixture(autouse=True)
def short_excerpts(monkeypatch):
    monkeypatch.setattr(source_sample, "EXCERPT_BYTES", KB)


@pytest.fixture
def sample(tmp_path):
    """Returns a function that returns the sampled lines and `Sampled` per source."""

    def sample(max_bytes, *specs, **data):
        data = {"max_line_bytes": 2**14, "max_document_bytes": 2**16} | data
        config = changed(make_config(tmp_path), "data", sources=specs, **data)
        inputs = input_files.find(config.data.sources)
        found, lines = [], [[] for _ in specs]
        for document in source_sample.documents(config.data, inputs, max_bytes, found):
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
    assert a == numbered(50, "a")
    assert found[0] == source_sample.Sampled(1, KB, 1, True)
    assert 8.5 * KB < found[1].bytes <= 9 * KB
    assert found[1].places == 9 and not found[1].is_everything


def test_a_large_file_is_sampled_over_its_whole_length(tmp_path, sample):
    write(tmp_path / "a.txt", numbered(5000))  # 100 kB
    (found,), (sampled,) = sample(10 * KB, f"text:{tmp_path}/a.txt")
    lines = {line: i for i, line in enumerate(numbered(5000))}
    places = collections.Counter(lines[line] // 500 for line in found)
    assert len(set(found)) == len(found)
    assert sorted(places) == list(range(10)) and min(places.values()) > 40
    assert sampled.places == 10 and not sampled.is_everything


def test_each_file_of_a_source_is_read(tmp_path, sample):
    """A small file, possibly in another language, is sampled besides large ones."""
    for name, count in {"a": 4000, "b": 40, "c": 8000}.items():
        write(tmp_path / f"{name}.txt", numbered(count, name))
    (found,), _ = sample(10 * KB, f"text:{tmp_path}/?.txt")
    counts = collections.Counter(line[0] for line in found)
    assert counts["b"] == 40
    assert 200 < counts["a"] < 240 and 200 < counts["c"] < 240


def test_of_very_many_files_evenly_spaced_ones_are_read(tmp_path, sample):
    for i in range(200):
        write(tmp_path / f"{i:03d}.txt", numbered(50, f"{i:03d}"))
    (found,), (sampled,) = sample(20 * KB, f"text:{tmp_path}/???.txt")
    chosen = sorted({int(line[:3]) for line in found})
    assert len(chosen) == 20 == sampled.places
    gaps = [b - a for a, b in zip([0, *chosen], [*chosen, 200], strict=True)]
    assert max(gaps) <= 20


def test_the_start_of_a_long_document_is_taken(tmp_path, sample):
    """Regression test: 20 books longer than the share of a source gave no text."""
    specs = []
    for i in range(20):
        (tmp_path / f"{i}.txt").write_text("word " * KB)  # one line of 5 kB
        specs.append(f"files:{tmp_path}/{i}.txt")
    _, found = sample(20 * KB, *specs)
    assert all(0.9 * KB < sampled.bytes <= KB for sampled in found)


def test_excerpts_of_a_file_of_one_line_start_between_characters(tmp_path, sample):
    characters = [chr(0x4E00 + i % 5000) for i in range(20_000)]
    (tmp_path / "a.txt").write_text("".join(characters))
    (found,), (sampled,) = sample(10 * KB, f"text:{tmp_path}/a.txt")
    assert sampled.places == 10 and sampled.bytes > 8 * KB
    assert {(ord(c) - 0x4E00) // 1000 for line in found for c in line} == {*range(5)}


def json_lines(count, length):
    texts = [f"{i}" + " word" * (length // 5) for i in range(count)]
    return texts, [json.dumps({"n": i, "text": text}) for i, text in enumerate(texts)]


@pytest.mark.parametrize("count, length", [(1000, 80), (40, 3 * KB)])
def test_excerpts_of_json_lines_start_at_a_line(tmp_path, sample, count, length):
    """Of a line longer than an excerpt, the start of the text is taken."""
    texts, lines = json_lines(count, length)
    write(tmp_path / "a.jsonl", lines)
    (found,), _ = sample(10 * KB, f"jsonl:{tmp_path}/a.jsonl#text")
    numbers = [int(line.split()[0]) for line in found]
    assert all(
        texts[i].startswith(line) for i, line in zip(numbers, found, strict=True)
    )
    assert len(set(numbers)) == len(numbers)
    assert len({10 * i // count for i in numbers}) >= 9
    assert sum(map(len, found)) > 7 * KB


def test_excerpts_of_wikiextractor_files_start_at_an_article(tmp_path, sample):
    articles = []
    for i in range(300):
        body = [html.escape(f"{i} & {j}") for j in range(20)]
        articles += [
            f'<doc id="{i}" url="" title="T{i}">',
            f"T{i}",
            "",
            *body,
            "</doc>",
        ]
    write(tmp_path / "wiki_00", articles)
    (found,), sampled = sample(10 * KB, f"wikiextractor:{tmp_path}/wiki_00")
    assert len({int(line.split()[0]) // 30 for line in found}) == 10
    assert not any("<" in line or "T" in line for line in found)


@pytest.mark.parametrize("name", ["a.txt.gz", "a.txt"])
def test_a_compressed_file_is_read_from_its_start(tmp_path, sample, name):
    write(tmp_path / name, numbered(50_000), gzip.compress)
    (found,), (sampled,) = sample(5 * KB, f"text:{tmp_path}/{name}")
    assert found[:200] == numbered(200)
    assert sampled.places == 1 and not sampled.is_everything


def test_a_parquet_file_is_read_from_its_start(tmp_path, sample):
    table = pyarrow.table({"text": numbered(50_000)})
    parquet.write_table(table, tmp_path / "a.parquet")
    (found,), (sampled,) = sample(5 * KB, f"parquet:{tmp_path}/a.parquet#text")
    assert found[:200] == numbered(200)
    assert sampled.places == 1 and not sampled.is_everything


def test_an_unreadable_excerpt_is_skipped(tmp_path, sample):
    lines = [json.dumps({"text": line}) for line in numbered(1000)]
    write(tmp_path / "a.jsonl", [*lines[:600], *["{"] * 100, *lines[600:]])
    (found,), _ = sample(10 * KB, f"jsonl:{tmp_path}/a.jsonl#text")
    assert found[0] == numbered(1)[0] and found[-1] > numbered(1000)[800]
    write(tmp_path / "b.jsonl", ["{", *lines])
    with pytest.raises(ConfigError, match="b.jsonl:1 is not JSON"):
        sample(10 * KB, f"jsonl:{tmp_path}/b.jsonl#text")


def test_a_source_without_text_is_an_error(tmp_path, sample):
    write(tmp_path / "a.txt", numbered(10))
    (tmp_path / "b.txt").write_text("\n\n")
    with pytest.raises(ConfigError, match="no text in"):
        sample(10 * KB, f"text:{tmp_path}/a.txt", f"text:{tmp_path}/b.txt")


def test_a_file_in_a_bucket(tmp_path, sample):
    path = f"memory:/{tmp_path}/a.txt"
    storage.write(path, "".join(f"{line}\n" for line in numbered(5000)).encode())
    (found,), (sampled,) = sample(10 * KB, f"text:{path}")
    assert len({int(line.split()[1]) // 500 for line in found}) == 10
    assert sampled.places == 10


class TinyBertSampled(tfds.core.GeneratorBasedBuilder):
    VERSION = tfds.core.Version("1.0.0")

    def _info(self):
        features = {"text": tfds.features.Text()}
        return self.dataset_info_from_configs(
            features=tfds.features.FeaturesDict(features)
        )

    def _split_generators(self, dl_manager):
        return {"train": self._generate_examples()}

    def _generate_examples(self):
        for i, line in enumerate(numbered(200)):
            yield i, {"text": f"{line}\n{line}"}


@pytest.mark.slow
def test_a_dataset_is_sampled_in_slices(tfds_directory, sample):  # noqa: F811
    spec = "tfds:tiny_bert_sampled:train"
    everything, (sampled,) = sample(100 * KB, spec)
    assert sampled == source_sample.Sampled(200, 8 * KB, 16, True)
    (found,), (sampled,) = sample(KB, spec)
    order = {line: i for i, line in enumerate(everything[0])}
    assert len({order[line] // 25 for line in found}) == 16
    assert not sampled.is_everything


def test_sampling_is_deterministic(tmp_path, sample):
    for i in range(7):
        write(tmp_path / f"{i}.txt", numbered(300 * i + 1, f"{i}"))
    assert sample(10 * KB, f"text:{tmp_path}/?.txt") == sample(
        10 * KB, f"text:{tmp_path}/?.txt"
    )


def test_only_the_sampled_excerpts_are_read(tmp_path, sample, monkeypatch):
    write(tmp_path / "a.txt", numbered(500_000))  # 10 MB
    num_bytes, read = 0, source_sample.storage.Reader.read

    def counted(self, size=-1):
        nonlocal num_bytes
        data = read(self, size)
        num_bytes += len(data)
        return data

    monkeypatch.setattr(source_sample.storage.Reader, "read", counted)
    sample(10 * KB, f"text:{tmp_path}/a.txt")
    assert num_bytes < 3e6  # reads are buffered by 1 MiB
