"""Tests of bert_jax.prepare_beam: its corpus equals that of bert_jax.prepare."""

import json
import os

import pytest

pytest.importorskip("apache_beam")

from bert_jax import prepare_beam
from bert_jax.data.corpus import build, key_ranges
from bert_jax.errors import ConfigError
from tests.commands import run, small_run, write_text
from tests.corpora import (
    changed,
    files,
    make_config,
    make_documents,
    write_documents,
)

IN_MEMORY = ["--runner=DirectRunner"]


@pytest.fixture
def two_sources(tmp_path):
    """A config of two sources with different weights, one of which has two files."""
    (tmp_path / "many").mkdir()
    specs = (f"text:{tmp_path}/many/*.txt", f"text:{tmp_path}/b.txt")
    config = make_config(tmp_path, sources=specs, source_weights=(0.5, 2.5))
    documents = make_documents(200)
    for number, name in enumerate(("many/[1].txt", "many/2.txt", "b.txt")):
        part = documents[60 * number : 60 * number + 80]
        write_documents(tmp_path / name, part)
    return config


def elsewhere(config):
    """Returns the config with another corpus directory."""
    return changed(config, "data", corpus_dir=config.data.corpus_dir + "_beam")


@pytest.mark.parametrize("vocab_file", ["given", "trained"])
def test_the_corpus_equals_that_of_prepare(two_sources, vocab_file):
    config = two_sources
    if vocab_file == "trained":
        config = changed(config, "tokenizer", vocab_file="", vocab_size=90)
    build.prepare(config)
    prepare_beam.run(elsewhere(config), IN_MEMORY)
    expected = files(config.data.corpus_dir)
    assert files(elsewhere(config).data.corpus_dir) == expected
    assert json.loads(expected["manifest.json"])["documents"]["repeated"] > 0


def test_a_killed_pipeline_starts_over(two_sources, monkeypatch):
    config = two_sources
    with monkeypatch.context() as patch:
        patch.setattr(prepare_beam.writer, "finish", kill)
        with pytest.raises(KeyboardInterrupt):
            prepare_beam.run(config, IN_MEMORY)
    assert "train-00000-of-00002" in os.listdir(config.data.corpus_dir)
    prepare_beam.run(config, IN_MEMORY)
    build.prepare(elsewhere(config))
    expected = files(elsewhere(config).data.corpus_dir)
    assert files(config.data.corpus_dir) == expected
    prepare_beam.run(config, IN_MEMORY)  # it is already prepared
    assert files(config.data.corpus_dir) == expected


def kill(*args):
    raise KeyboardInterrupt


def test_errors_leave_no_corpus(two_sources, tmp_path):
    config = two_sources
    with pytest.raises(ConfigError, match="^--rnner is neither a flag of bert_jax nor"):
        prepare_beam.run(config, ["--rnner=DirectRunner"])
    (tmp_path / "b.jsonl").write_text('{"text": 1}\n')
    sources = [config.data.sources[0], f"jsonl:{tmp_path}/b.jsonl#text"]
    with pytest.raises(ConfigError, match=r"^/.*b.jsonl:1 [^\[]*$"):
        prepare_beam.run(changed(config, "data", sources=sources), IN_MEMORY)
    sources = [config.data.sources[0], f"text:{tmp_path}/c.txt"]
    (tmp_path / "c.txt").write_text("\n\n")
    with pytest.raises(ConfigError, match="^config.data.sources: no text in 'text:.*c"):
        prepare_beam.run(changed(config, "data", sources=sources), IN_MEMORY)
    assert not os.path.exists(config.data.corpus_dir)


def test_a_large_held_out_set_gets_the_same_shards(two_sources, monkeypatch):
    config = two_sources
    monkeypatch.setattr(key_ranges, "VALIDATION_BYTES", 400)
    build.prepare(config)
    prepare_beam.run(elsewhere(config), IN_MEMORY)
    expected = files(config.data.corpus_dir)
    assert len([name for name in expected if name.startswith("validation")]) > 2
    assert files(elsewhere(config).data.corpus_dir) == expected


def test_an_empty_file_among_others_is_accepted(two_sources, tmp_path):
    config = two_sources
    (tmp_path / "many" / "3.txt").write_text("")
    build.prepare(config)
    prepare_beam.run(elsewhere(config), IN_MEMORY)
    expected = files(config.data.corpus_dir)
    assert files(elsewhere(config).data.corpus_dir) == expected


@pytest.mark.slow
def test_the_command_with_several_processes(tmp_path):
    write_text(tmp_path / "documents.txt", 200)
    arguments = small_run(tmp_path, **{"data.corpus_dir": tmp_path / "beam"})
    workers = ["--direct_num_workers=2", "--direct_running_mode=multi_processing"]
    beam = run("bert_jax.prepare_beam", *arguments, *IN_MEMORY, *workers)
    assert beam.returncode == 0, beam.stderr
    assert "tokens to train on" in beam.stdout
    pool = run("bert_jax.prepare", *small_run(tmp_path), "--workers=2")
    assert pool.returncode == 0, pool.stderr
    assert files(tmp_path / "beam") == files(tmp_path / "corpus")
