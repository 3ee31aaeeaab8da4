"""Tests of bert_jax.data.tokenizer_training."""

import pytest

from bert_jax.data import sources, tokenizer_training, tokenizers, wordpiece_training
from tests.corpora import changed, make_config, make_documents, raw, write_source


@pytest.fixture
def two_sources(tmp_path):
    """A config that trains on two sources, the second in other words, and both."""
    specs = tuple(f"text:{tmp_path}/{name}.txt" for name in "ab")
    config = make_config(tmp_path, sources=specs)
    parts = [
        [["start", *document] for document in make_documents(100)],
        [["start", *(s.replace("w", "v") for s in d)] for d in make_documents(100)],
    ]
    for number, part in enumerate(parts):
        write_source(config, part, number)
    return changed(config, "tokenizer", vocab_file="", vocab_size=120), parts


def test_a_given_vocabulary_is_taken_as_it_is(tmp_path):
    config = make_config(tmp_path)
    expected = tokenizers.load(config.tokenizer), None
    assert tokenizer_training.make(config, None) == expected


def test_a_small_text_is_trained_on_whole_wherever_it_comes_from(two_sources):
    config, parts = two_sources
    kept = [(number, raw(d)) for number, part in enumerate(parts) for d in part]
    in_memory, trained_on = tokenizer_training.make(config, kept)
    read_again, same = tokenizer_training.make(config, None)
    assert in_memory == read_again and trained_on == same
    sizes = [document.num_bytes for _, document in kept]
    assert trained_on == tokenizer_training.TrainedOn(200, sum(sizes), True)
    everything = [document for part in parts for document in part]
    assert in_memory == tokenizers.train(everything, config.tokenizer)


def test_of_a_large_text_each_source_gives_its_beginning(two_sources, monkeypatch):
    config, parts = two_sources
    monkeypatch.setattr(wordpiece_training, "TRAINING_BYTES", 2000)
    seen, train = [], tokenizers.train

    def noted(documents, *args):
        seen.extend(documents)
        return train(seen, *args)

    monkeypatch.setattr(tokenizers, "train", noted)
    _, trained_on = tokenizer_training.make(config, None)
    counts = [sum(document in part for document in seen) for part in parts]
    assert seen == parts[0][: counts[0]] + parts[1][: counts[1]]
    assert 0 < counts[0] < 100 and 0 < counts[1] < 100
    sizes = [len("\n".join(document)) + 1 for document in seen]
    assert trained_on == tokenizer_training.TrainedOn(len(seen), sum(sizes), False)
    assert sum(sizes[: counts[0]]) <= 1000 and sum(sizes[counts[0] :]) <= 1000


def test_no_more_is_read_than_is_trained_on(two_sources, monkeypatch):
    config, parts = two_sources
    monkeypatch.setattr(wordpiece_training, "TRAINING_BYTES", 2000)
    num_read, documents = 0, sources.documents

    def counted(*args):
        nonlocal num_read
        for document in documents(*args):
            num_read += 1
            yield document

    monkeypatch.setattr(sources, "documents", counted)
    _, trained_on = tokenizer_training.make(config, None)
    assert num_read == trained_on.documents + 2  # the first too many of each
