"""Fuzzes the files of corpora and models."""

import functools
import json
import pathlib
import shutil
from unittest import mock

from hypothesis import given
from hypothesis import strategies as st

from bert_jax import digests
from bert_jax.data.corpus import corpus
from bert_jax.loading import init_from
from tests import models
from tests.conftest import make_config as model_config
from tests.corpora import all_text, make_config, make_documents, write
from tests.faults.fuzzed import JSON, config_error, edited, edits, new_directory

CORPUS_FILES = [
    "manifest.json",
    "manifest.json",
    "vocab.txt",
    "train-00000-of-00002",
    "train-00001-of-00002",
    "validation-00000-of-00001",
]


@functools.cache
def made_corpus():
    directory = new_directory()
    config = make_config(directory)
    write(config, make_documents(40))
    return config, directory / "corpus", all_text(corpus.read(config))


@given(st.sampled_from(CORPUS_FILES), edits)
def test_a_file_of_a_corpus(name, edits):
    config, directory, text = made_corpus()
    path = directory / name
    content = path.read_bytes()
    path.write_bytes(edited(content, edits))
    try:
        found = []
        if not config_error(lambda: found.append(corpus.read(config)), name):
            assert all_text(found[0]) == text
    finally:
        path.write_bytes(content)


@given(st.sampled_from(CORPUS_FILES[3:]), edits)
def test_a_shard_that_changes_after_it_was_opened(name, edits):
    """When a large corpus is opened, only the sizes of its shards are verified."""
    config, directory, text = made_corpus()
    path = directory / name
    opened, content = corpus.read(config), path.read_bytes()
    path.write_bytes(edited(content, edits))
    try:
        found = []
        if not config_error(lambda: found.append(all_text(opened)), name):
            assert found[0] == text
    finally:
        path.write_bytes(content)


# -------------------------------------------------------------- model directories

MODEL_FILES = [
    "model.safetensors",
    "config.json",
    "config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "vocab.txt",
]


@functools.cache
def made_model():
    directory = new_directory()
    models.export_to(directory)
    shapes = init_from.parameter_shapes(model_config())
    return directory, shapes


def read_as_a_run_does(directory):
    _, shapes = made_model()
    with mock.patch.object(init_from, "parameter_shapes", lambda config: shapes):
        return models.read(directory)


def copied() -> pathlib.Path:
    return shutil.copytree(made_model()[0], new_directory() / "model")


def check(directory, *names):
    names = *MODEL_FILES, str(directory), "config."
    config_error(lambda: read_as_a_run_does(directory), *names)


@given(st.sampled_from(MODEL_FILES), edits)
def test_a_file_of_a_model_without_digests(name, edits):
    directory = copied()
    path = directory / name
    path.write_bytes(edited(path.read_bytes(), edits))
    check(directory)


@given(edits)
def test_the_header_of_safetensors(edits):
    """Edits lengths, offsets, shapes and dtypes, a few percent of the file."""
    directory = copied()
    path = directory / "model.safetensors"
    content = path.read_bytes()
    end = 8 + int.from_bytes(content[:8], "little")
    header = edited(content[8:end], edits)
    path.write_bytes(len(header).to_bytes(8, "little") + header + content[end:])
    check(directory)


@given(
    st.sampled_from(MODEL_FILES[1:5]), st.text(max_size=12), JSON, st.integers(0, 50)
)
def test_a_value_in_a_json_file(name, new_key, value, place):
    directory = copied()
    path = directory / name
    values = json.loads(path.read_text())
    keys = [*values, new_key]
    values[keys[place % len(keys)]] = value
    path.write_text(json.dumps(values))
    check(directory)


@given(st.sampled_from(MODEL_FILES + ["SHA256SUMS"]), edits)
def test_a_file_of_a_model_with_digests(name, edits):
    """If it is read, the weights equal the written ones."""
    directory = copied()
    digests.write_sums(directory)
    expected = read_as_a_run_does(directory).arrays
    path = directory / name
    path.write_bytes(edited(path.read_bytes(), edits))
    found = []
    names = *MODEL_FILES, "SHA256SUMS", str(directory)
    if not config_error(lambda: found.append(read_as_a_run_does(directory)), *names):
        models.assert_same(found[0].arrays, expected)
