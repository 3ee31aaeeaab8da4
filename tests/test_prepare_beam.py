"""Tests of bert_jax.prepare_beam: its corpus equals that of bert_jax.prepare."""

import json
import os
import re
import shlex
import signal
import sys
import time
from pathlib import Path

import pyarrow
import pytest
from pyarrow import parquet

pytest.importorskip("apache_beam")

from bert_jax import prepare_beam
from bert_jax.data.corpus import build, key_ranges
from bert_jax.errors import EXIT_LOST, ConfigError, CorruptError, StorageError
from tests.commands import ROOT, run, run_well, small_run, start, write_text
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


def test_streamed_text_needs_no_corpus(two_sources):
    with pytest.raises(
        ConfigError, match="needs an index, which python -m bert_jax.pr"
    ):
        prepare_beam.run(changed(two_sources, "data", stream=True), IN_MEMORY)


def test_a_killed_pipeline_starts_over(two_sources, monkeypatch):
    config = two_sources
    with monkeypatch.context() as patch:
        patch.setattr(prepare_beam.writer, "finish", kill)
        patch.setattr(prepare_beam.storage, "remove_directory", lambda path: None)
        with pytest.raises(KeyboardInterrupt):
            prepare_beam.run(config, IN_MEMORY)
    assert "train-00000-of-00002" in os.listdir(config.data.corpus_dir)
    config = changed(config, "data", num_shards=1, num_streams=1)
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


@pytest.mark.parametrize("kind", [ConfigError, CorruptError, StorageError])
def test_an_error_of_a_worker_is_raised_as_its_own_kind(kind):
    lines = (
        "bundle 1 failed:",
        "Traceback (most recent call last):",
        '  File "x.py", line 1, in process',
        "    raise kind(message)",
        f"bert_jax.errors.{kind.__name__}: /a/b: no 'x' [1] [while running 'read']",
    )
    with (
        pytest.raises(Exception, match="^/a/b: no 'x' .1.$") as caught,
        prepare_beam._raising_worker_errors(),
    ):
        raise RuntimeError("\n".join(lines))
    assert type(caught.value) is kind
    with pytest.raises(KeyError), prepare_beam._raising_worker_errors():
        raise KeyError("x")


def test_the_documented_options_exist():
    text = (ROOT / "launch" / "README.md").read_text()
    runners = []
    for command in re.findall(r"-m bert_jax\.prepare_beam ((?:.*\\\n)*.*)", text):
        for placeholder in ("PROJECT", "REGION", "BUCKET", "IMAGE", "HOST"):
            command = command.replace(placeholder, placeholder.lower())
        options = shlex.split(command)
        options = [option for option in options if not option.startswith("--config")]
        runners.append(type(prepare_beam._pipeline(options).runner).__name__)
    assert sorted(set(runners)) == [
        *("DataflowRunner", "FlinkRunner", "SparkRunner", "SwitchingDirectRunner"),
    ]


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


@pytest.fixture
def arguments(tmp_path):
    """Arguments of a small run on text and Parquet, and its corpus by prepare."""
    write_text(tmp_path / "documents.txt", 200)
    text = [" ".join(document) for document in make_documents(80)]
    column = pyarrow.StructArray.from_arrays([pyarrow.array(text)], ["text"])
    table = pyarrow.table({"document": column})
    parquet.write_table(table, tmp_path / "more.parquet", row_group_size=30)
    specs = f"text:{tmp_path}/*.txt", f"parquet:{tmp_path}/*.parquet#document.text"
    changes = {"data.sources": repr(specs), "data.num_shards": 4}
    run_well("bert_jax.prepare", *small_run(tmp_path, **changes), "--workers=2")
    return small_run(
        tmp_path, **changes | {"data.corpus_dir": str(tmp_path / "beam_corpus")}
    )


@pytest.mark.slow
def test_worker_processes_of_an_external_pool(arguments, tmp_path):
    path = f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}"
    service = start("tests.beam_service", PATH=path)
    try:
        found = json.loads(service.stdout.readline())
        beam = run(
            "bert_jax.prepare_beam",
            *arguments,
            *("--runner=PortableRunner", f"--job_endpoint={found['jobs']}"),
            *("--environment_type=EXTERNAL", "--direct_num_workers=3"),
            f"--environment_config={found['workers']}",
        )
    finally:
        service.terminate()
        _, stderr = service.communicate()
    assert beam.returncode == 0, beam.stderr + stderr
    assert stderr.count("Starting worker with command") == 3
    assert files(tmp_path / "beam_corpus") == files(tmp_path / "corpus")


@pytest.mark.slow
def test_a_killed_worker_process_ends_the_command(arguments, tmp_path):
    options = ["--direct_num_workers=2", "--direct_running_mode=multi_processing"]
    command = ["bert_jax.prepare_beam", *arguments, *IN_MEMORY, *options]
    driver = start(*command)
    while not list((tmp_path / "beam_corpus").glob("*-of-*")):
        assert driver.poll() is None, driver.communicate()
        time.sleep(0.05)
    workers = [pid for pid in descendants(driver.pid) if not descendants(pid)]
    assert len(workers) == 2
    os.kill(workers[0], signal.SIGKILL)
    _, stderr = driver.communicate(timeout=60)
    assert driver.returncode == EXIT_LOST
    assert "error: a worker process of Beam died" in stderr
    assert "tokens to train on" in run_well(*command)
    assert files(tmp_path / "beam_corpus") == files(tmp_path / "corpus")


def descendants(pid):
    children = Path(f"/proc/{pid}/task").glob("*/children")
    found = [int(child) for file in children for child in file.read_text().split()]
    return found + [other for child in found for other in descendants(child)]


@pytest.mark.slow
def test_errors_of_the_command_take_one_line(arguments, tmp_path):
    unknown = run("bert_jax.prepare_beam", *arguments, "--runner=NoRunner")
    assert unknown.returncode == 2
    assert "error: Unexpected pipeline runner: NoRunner. Valid" in unknown.stderr
    (tmp_path / "other.txt").write_bytes(b"\xff\n")
    options = ["--direct_num_workers=2", "--direct_running_mode=multi_processing"]
    options += [f"--config.tokenizer.vocab_file={tmp_path}/corpus/vocab.txt"]
    bad = run("bert_jax.prepare_beam", *arguments, *IN_MEMORY, *options)
    assert bad.returncode == 2
    assert f"error: {tmp_path}/other.txt:1 is not UTF-8" in bad.stderr
    assert not (tmp_path / "beam_corpus").exists()
