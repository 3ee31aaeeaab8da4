"""Tests of bert_jax.data.tokenizers.training."""

import itertools
import tempfile

import pytest

from bert_jax.data.sources import input_files
from bert_jax.data.tokenizers import (
    source_sample,
    tokenizers,
    training,
    wordpiece_training,
)
from tests.corpora import changed, make_config, make_documents, raw, write_source


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


@pytest.fixture
def work(tmp_path):
    """Returns a function that creates a work directory."""
    return lambda: tempfile.mkdtemp(dir=tmp_path)


def kept(parts):
    return [(number, raw(d)) for number, part in enumerate(parts) for d in part]


def make(config, documents, work):
    found = input_files.find(config.data.sources)
    return training.load_or_train(config, found, documents, work)


def test_a_vocabulary_file_is_loaded_unchanged(tmp_path, work):
    config = make_config(tmp_path, sources=("embedded:",))
    expected = tokenizers.load(config.tokenizer), None
    assert make(config, None, work()) == expected


def test_training_on_documents_and_on_sources_of_a_small_text_is_equal(
    two_sources, work
):
    config, parts = two_sources
    in_memory, trained_on = make(config, kept(parts), work())
    read_again, same = make(config, None, work())
    assert in_memory == read_again and trained_on == same
    sizes = [sum(document.num_bytes for _, document in kept([part])) for part in parts]
    assert trained_on == {
        "documents": 200,
        "bytes": sum(sizes),
        "is_everything": True,
        "sources": [
            {"documents": 100, "bytes": size, "places": 1, "is_everything": True}
            for size in sizes
        ],
    }
    everything = [document for part in parts for document in part]
    assert in_memory == tokenizers.train(everything, config.tokenizer)


def test_a_large_text_is_sampled_from_each_source(two_sources, monkeypatch, work):
    config, parts = two_sources
    monkeypatch.setattr(wordpiece_training, "TRAINING_BYTES", 4000)
    monkeypatch.setattr(source_sample, "EXCERPT_BYTES", 500)
    seen, train = [], tokenizers.train

    def recording_train(documents, *args):
        seen.extend(documents)
        return train(seen, *args)

    monkeypatch.setattr(tokenizers, "train", recording_train)
    _, trained_on = make(config, None, work())
    size = sum(len(sentence) + 1 for document in seen for sentence in document)
    assert 3000 < size == trained_on["bytes"] <= 4000
    assert trained_on["documents"] == len(seen)
    for part, sampled in zip(parts, trained_on["sources"], strict=True):
        sentences = [sentence for document in part for sentence in document]
        found = [sentences.index(s) for d in seen for s in d if s in sentences]
        assert min(found) < len(sentences) / 4 and max(found) > len(sentences) * 3 / 4
        assert sampled["places"] == 4 and not sampled["is_everything"]
    assert not trained_on["is_everything"]


class Killed(BaseException):
    """Not an Exception, like KeyboardInterrupt."""


def killed(*args):
    raise Killed


def test_the_sample_is_reused_after_the_training_was_killed(
    two_sources, monkeypatch, work, capsys
):
    config, _ = two_sources
    expected = make(config, None, work())
    directory = work()
    with monkeypatch.context() as patch:
        patch.setattr(tokenizers, "train", killed)
        with pytest.raises(Killed):
            make(config, None, directory)
    monkeypatch.setattr(source_sample, "documents", killed)
    capsys.readouterr()
    assert make(config, None, directory) == expected
    assert "tokenizer: reusing the sampled text" in capsys.readouterr().out
    monkeypatch.setattr(tokenizers, "train", killed)
    assert make(config, None, directory) == expected


def test_an_unfinished_sample_is_gathered_again(two_sources, monkeypatch, work):
    config, _ = two_sources
    expected = make(config, None, work())
    directory, documents = work(), source_sample.documents

    def ended(*args):
        yield from itertools.islice(documents(*args), 50)
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(source_sample, "documents", ended)
        with pytest.raises(Killed):
            make(config, None, directory)
    assert make(config, None, directory) == expected


def test_training_is_logged(two_sources, work, capsys):
    config, _ = two_sources
    make(config, None, work())
    start, end = capsys.readouterr().out.splitlines()
    assert start.startswith("tokenizer: training 120 pieces (wordpiece) on 0.0 MB of")
    assert end.startswith("tokenizer: training 120 pieces") and end.endswith(" s")
