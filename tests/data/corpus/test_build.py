"""Tests of bert_jax.data.corpus.build, including interruption and resuming."""

import json
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from unittest import mock

import pytest

from bert_jax import storage
from bert_jax.data.batches import visits
from bert_jax.data.corpus import build, corpus, input_groups, keyed, sorted_runs
from bert_jax.data.sources import sources
from bert_jax.data.sources.parquet import Parquet
from bert_jax.data.tokenizers import training
from bert_jax.errors import ConfigError, CorruptError
from tests import fake_hub
from tests.conftest import slow
from tests.corpora import (
    WORDS,
    all_text,
    changed,
    elsewhere,
    files,
    interrupted,
    make_config,
    make_documents,
    parquet_bytes,
    places,
    write,
    write_documents,
    write_source,
)


@pytest.fixture(autouse=True)
def small_runs(monkeypatch):
    monkeypatch.setattr(build, "RUN_BYTES", 2000)


@pytest.fixture
def documents():
    """Documents, some of them repeated."""
    made = make_documents(120, max_sentences=8)
    return made + made[:20]


@pytest.fixture
def config(tmp_path, documents):
    """A config with a source of the documents."""
    config = make_config(tmp_path)
    write_source(config, documents)
    return config


def trains(config, vocab_size=90):
    return changed(config, "tokenizer", vocab_file="", vocab_size=vocab_size)


def made(config, *args):
    """Prepares a corpus; returns its files."""
    build.prepare(config, *args)
    return files(config.data.corpus_dir)


# ------------------------------------------------------------------------- files


def test_the_corpus_contains_the_documents_of_the_source(config, documents):
    by_hand = elsewhere(config, "by_hand")
    found = write(by_hand, documents)
    assert made(config) == files(by_hand.data.corpus_dir)
    assert sorted(places(found)) == sorted(set(map(tuple, documents)))


@pytest.mark.parametrize(
    "num_workers, small_bytes",
    [(4, build.SMALL_BYTES), slow(2, 0)],  # 0: shards are written by processes, too
)
def test_any_number_of_workers_makes_the_same_files(
    config, monkeypatch, num_workers, small_bytes
):
    config = trains(config)
    alone = made(config, 1)
    monkeypatch.setattr(build, "SMALL_BYTES", small_bytes)
    assert made(elsewhere(config, "workers"), num_workers) == alone


def shards_of(config, scratch_dir=None):
    """Prepares a corpus; returns its shards, because the manifest names the sources."""
    found = made(config, 1, scratch_dir).items()
    return {name: data for name, data in found if name.startswith(("train", "valid"))}


def test_an_untidy_text_makes_the_same_shards_as_a_clean_one(
    config, documents, tmp_path
):
    """Byte order marks, line ends and control characters do not change the shards."""
    write_source(config, documents)
    text = (tmp_path / "text.txt").read_text().replace("w7", "\ufffdw7")
    (tmp_path / "text.txt").write_text(text)
    tidy = shards_of(elsewhere(config, "tidy"))
    untidy = "\ufeff" + text.replace("w1", "w\x001\x07").replace("\n", "\r\n")
    (tmp_path / "text.txt").write_bytes(untidy.encode())
    assert shards_of(elsewhere(config, "untidy")) == tidy
    found = all_text(corpus.read(elsewhere(config, "untidy")))
    assert {word for d in found for s in d for word in s.split()} == set(WORDS)


def test_a_corpus_in_a_bucket(config, tmp_path):
    """The bucket is simulated by fsspec's in-memory file system."""
    local = made(config)
    remote = changed(config, "data", corpus_dir=f"memory:/{tmp_path}/corpus")
    found = build.prepare(remote, 1)
    assert found.shards == corpus.read(config).shards
    assert sorted(storage.names(found.directory)) == sorted(local)
    assert sorted(all_text(found)) == sorted(all_text(corpus.read(config)))


def test_a_corpus_among_its_own_text_is_an_error(config):
    directory = os.path.dirname(config.data.sources[0].partition(":")[2])
    before = files(directory)
    config = changed(config, "data", corpus_dir=f"{directory}/.")
    with pytest.raises(ConfigError, match="^config.data.corpus_dir=.* contains /.*"):
        build.prepare(config)
    assert files(directory) == before


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("has_scratch", [False, True])
def test_files_of_the_corpus_are_not_its_text(config, monkeypatch, stream, has_scratch):
    """The pattern matches text.txt, and vocab.txt of a killed call or of an index."""
    scratch = os.path.dirname(config.data.corpus_dir) if has_scratch else None
    one = {"num_shards": 1, "num_streams": 1, "stream": stream}
    config = changed(trains(config), "data", **one)
    spec = f"text:{os.path.dirname(config.data.corpus_dir)}/**/*[tb].txt"
    around = changed(config, "data", sources=(spec,))
    with interrupted(build.writer.lease, "confirm_all"):
        build.prepare(around, 1, scratch)
    found = shards_of(around, scratch)
    build.find_corpus(around)
    assert found == shards_of(elsewhere(config))


def test_long_lines_of_json_are_dropped_with_a_warning(config, tmp_path, capsys):
    rows = [json.dumps({"text": f"One. Two {i}."}) for i in range(20)]
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join([*rows, json.dumps({"text": "Long. " * 2000})]))
    keys = {"max_document_bytes": 2048, "max_line_bytes": 1024, "num_shards": 1}
    keys |= {"sources": (f"jsonl:{path}#text",), "num_streams": 1}
    build.prepare(changed(config, "data", **keys), 1)
    printed = capsys.readouterr().out
    assert "warning: 1 lines of JSON were dropped, which are over 4 times" in printed


@pytest.mark.parametrize("prepare", [build.prepare, build.find_corpus])
def test_a_text_with_the_name_of_a_vocabulary_is_not_overwritten(config, prepare):
    config = trains(config)
    text = pathlib.Path(config.data.corpus_dir) / "vocab.txt"
    text.parent.mkdir()
    text.write_text("My own text.")
    spec = f"text:{text.parent.parent}/**/*.txt"
    with pytest.raises(ConfigError, match=f"corpus_dir=.* contains {text}, a file of"):
        prepare(changed(config, "data", sources=(spec,)))
    assert files(str(text.parent)) == {"vocab.txt": b"My own text."}


@pytest.mark.parametrize("name", ["config.json", "checkpoints", "finetune.json"])
def test_a_corpus_in_a_model_or_a_workdir_is_an_error(config, name):
    directory = pathlib.Path(config.data.corpus_dir)
    (directory / name).mkdir(parents=True)
    with pytest.raises(
        ConfigError, match=f"^config.data.corpus_dir=.* has {name}, like"
    ):
        build.prepare(config)
    assert [path.name for path in directory.iterdir()] == [name]


def test_preparing_an_existing_corpus_does_nothing(config, capsys):
    first = build.prepare(config)

    def times():
        made = os.scandir(config.data.corpus_dir)
        return {file.name: file.stat().st_mtime_ns for file in made}

    before = times()
    os.remove(config.data.sources[0].removeprefix("text:"))  # not even read
    assert build.prepare(config) == first
    assert times() == before
    assert "already prepared" in capsys.readouterr().out


# ------------------------------------------------------------- killed and resumed


class Killed(BaseException):
    """Not an Exception, like KeyboardInterrupt."""


def killed_at(monkeypatch, config, count):
    """Prepares a corpus until the count-th file is about to be renamed.

    Returns:
      Whether that file was reached.
    """
    seen, replace = [], os.replace

    def replaced(*args):
        seen.append(args)
        if len(seen) == count:
            raise Killed
        replace(*args)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", replaced)
        try:
            build.prepare(config, 1)
        except Killed:
            return True
    return False


def calls_of(kind, name, config):
    """Prepares a corpus; returns the arguments of all calls of a method."""
    real = getattr(kind, name)
    with mock.patch.object(kind, name, autospec=True, side_effect=real) as noted:
        build.prepare(config, 1)
    return [call.args[1:] for call in noted.call_args_list]


def encoded_batches(config):
    """Prepares a corpus; returns the names of the batches that were encoded."""
    calls = calls_of(sorted_runs.RunWriter, "__call__", config)
    return [batch.name for (batch,) in calls]


@pytest.mark.slow
def test_killed_before_any_file_it_resumes(config, monkeypatch):
    expected = made(elsewhere(config, "straight"))
    names = encoded_batches(elsewhere(config, "counted"))
    assert len(names) > 5
    # The mark of the work and settings of the runs; the runs; the settings of the
    # shards, and two files for each; vocabulary and manifest.
    count = 2 + len(names) + 1 + 2 * 3 + 2
    for i in range(1, count + 1):
        again = elsewhere(config, f"again{i}")
        assert killed_at(monkeypatch, again, i)
        assert not corpus.exists(again.data.corpus_dir)
        finished = max(0, min(len(names), i - 3))
        assert encoded_batches(again) == names[finished:]
        assert files(again.data.corpus_dir) == expected
    again = elsewhere(config, "whole")
    assert not killed_at(monkeypatch, again, count + 1)


def one_parquet_file(documents, rows):
    text = ["\n".join(document) for document in documents]
    return parquet_bytes({"text": text}, rows)


def parts_read(config):
    """Prepares a corpus; returns the parts of Parquet files that were read."""
    return [part for _, part, _ in calls_of(Parquet, "read", config)]


def test_killed_again_and_again(config, monkeypatch):
    """Each attempt finishes one more file than the one before."""
    expected = made(elsewhere(config, "straight"))
    for _ in range(100):
        if not killed_at(monkeypatch, config, 4):
            break
    assert files(config.data.corpus_dir) == expected


def test_a_parquet_file_resumes_at_its_row_groups(
    config, documents, tmp_path, monkeypatch
):
    (tmp_path / "a.parquet").write_bytes(one_parquet_file(documents, 10))
    config = changed(config, "data", sources=(f"parquet:{tmp_path}/a.parquet#text",))
    straight = elsewhere(config, "straight")
    parts = parts_read(straight)
    assert len(parts) > 4 and parts[-1][1] == 14
    num_groups = len(encoded_batches(elsewhere(config, "counted")))
    assert killed_at(monkeypatch, config, 2 + num_groups)
    runs = os.path.join(config.data.corpus_dir, "unfinished", "runs")
    finished = sorted_runs.finished(runs)
    left = parts_read(config)
    assert 0 < len(left) < len(parts) and left == parts[-len(left) :]
    assert len(finished) == num_groups - 1
    assert files(config.data.corpus_dir) == files(straight.data.corpus_dir)


@pytest.mark.slow
def test_a_dataset_of_the_hub_resumes_with_the_same_commit(
    config, documents, tmp_path, monkeypatch, capsys
):
    content = one_parquet_file(documents, 10)
    with fake_hub.Hub() as hub:
        hub.use(monkeypatch)
        repository = hub.add("datasets/owner/name", {"train.parquet": content})
        commit = repository.refs["main"]
        config = changed(config, "data", sources=("hf:owner/name",))
        assert killed_at(monkeypatch, config, 7)
        repository.commit({"train.parquet": one_parquet_file(documents[:50], 10)})
        build.prepare(config, 1)
        assert f"resuming with {commit}" in capsys.readouterr().out
    manifest = json.loads(files(config.data.corpus_dir)["manifest.json"])
    assert manifest["hub_commits"] == {"hf:owner/name": commit}
    (tmp_path / "snapshot").mkdir()
    (tmp_path / "snapshot/train.parquet").write_bytes(content)
    local = elsewhere(config, "local")
    local = changed(local, "data", sources=(f"hf:{tmp_path}/snapshot",))
    build.prepare(local, 1)
    assert shards_of(local) == shards_of(config)
    assert fake_hub.TOKEN not in str(files(config.data.corpus_dir))


def test_killed_after_the_manifest_it_only_removes_work(config):
    with interrupted(build.work_directory, "remove"):
        build.prepare(config)
    assert "unfinished" in os.listdir(config.data.corpus_dir)
    assert encoded_batches(config) == []
    assert "unfinished" not in files(config.data.corpus_dir)


def test_finished_shards_are_kept_without_the_scratch_directory(
    config, tmp_path, monkeypatch
):
    config, scratch = trains(config), tmp_path / "scratch"
    expected = made(elsewhere(config, "straight"), 1)
    replace = os.replace

    def replaced(temporary, path):
        if path.endswith("train-00001-of-00002.json"):
            raise Killed
        replace(temporary, path)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", replaced)
        with pytest.raises(Killed):
            build.prepare(config, 1, str(scratch))
    first = os.path.join(config.data.corpus_dir, "train-00000-of-00002")
    finished = os.stat(first)
    shutil.rmtree(scratch)
    assert made(config, 1, str(scratch)) == expected
    assert os.path.samestat(os.stat(first), finished)


@pytest.mark.parametrize(
    "change, count",
    [
        (trains, -3),
        slow(lambda x: write_source(x, make_documents(120, seed=5)), 9),
        slow(lambda x: os.utime(x.data.sources[0].removeprefix("text:")), -3),
        slow(lambda x: changed(x, "data", source_weights=(2.0,)), -3),
    ],
)
def test_work_for_other_inputs_is_not_reused(config, monkeypatch, change, count):
    """The process is killed while runs are written, and after the first shards."""
    names = encoded_batches(elsewhere(config, "counted"))
    assert killed_at(monkeypatch, config, count % (len(names) + 2 * 3 + 5))
    time.sleep(0.01)  # the resolution of modification times
    config = change(config) or config
    assert len(encoded_batches(config)) >= 5  # all of them
    assert files(config.data.corpus_dir) == made(elsewhere(config, "straight"))


@pytest.mark.parametrize(
    ("values", "count"),
    [({"num_shards": 4}, -3), slow({"validation_fraction": 0.4}, 9)],
)
def test_runs_are_reused_for_other_shards(config, monkeypatch, values, count):
    names = encoded_batches(elsewhere(config, "counted"))
    count %= len(names) + 2 * 3 + 5
    assert killed_at(monkeypatch, config, count)
    config = changed(config, "data", **values)
    left = names[max(0, count - 3) :]
    assert encoded_batches(config) == left
    assert files(config.data.corpus_dir) == made(elsewhere(config, "straight"))


PROGRAM = """
import json, sys, time
from bert_jax import config
from bert_jax.data.corpus import build, workers

build.RUN_BYTES = int(sys.argv[2])
num_handed_out, run = int(sys.argv[3]), workers.run

def stopping(items):
    global num_handed_out
    for item in items:
        if not num_handed_out:
            time.sleep(3600)
        num_handed_out -= 1
        yield item

workers.run = lambda make, args, items, **kw: run(make, args, stopping(items), **kw)
build.is_small = lambda config: False  # both workers write shards too
build.prepare(config.from_saved(json.load(open(sys.argv[1]))), 2)
"""


def start(config, path, *args):
    path.write_text(config.to_json())
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(path), *map(str, args)],
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )


def num_finished(config):
    """Returns the number of finished runs and shards."""
    work = os.path.join(config.data.corpus_dir, "unfinished")
    names = [name for _, _, of_one in os.walk(work) for name in of_one]
    pattern = r"run-[0-9a-f]+-\d+(-last)?|(train|validation)-.*\.json"
    return sum(re.fullmatch(pattern, name) is not None for name in names)


@pytest.mark.slow
def test_sigkill_of_all_processes_at_random_moments(config, tmp_path, monkeypatch):
    """While runs are written, and the last time while shards are.

    The processes are given a few runs more than those they are killed at, so that they
    are at work then, and never finish before however slow this process is.
    """
    num_kills, config = 6, trains(config)
    expected = made(elsewhere(config, "straight"), 1)
    monkeypatch.setattr(build, "RUN_BYTES", 100)
    documents = sources.read(config.data.sources[0], config.data, Counter())
    num_runs = len(list(sorted_runs.batches("group", 0, documents, {}, 100)))
    most = num_runs // (num_kills - 1) - 4
    assert most >= 3
    moments = random.Random(num_kills)
    for i in range(num_kills):
        found = num_finished(config)
        in_shards = i == num_kills - 1
        wanted = num_runs - found + 1 if in_shards else moments.randint(0, most)
        ahead = 1 if in_shards else 2  # the last of three shards is never started
        process = start(config, tmp_path / "config.json", 100, wanted + ahead)
        while num_finished(config) < found + wanted:
            assert process.poll() is None
            time.sleep(0.001)
        time.sleep(moments.random() * 0.01)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        assert num_finished(config) >= found + wanted
        assert not corpus.exists(config.data.corpus_dir)
    assert encoded_batches(config) == []
    assert files(config.data.corpus_dir) == expected


# ----------------------------------------------------------------- errors


def check_fails(config, message, num_workers=1):
    """Prepares a corpus; checks the error, and that finished work is kept."""
    with pytest.raises(ConfigError, match=message) as caught:
        build.prepare(config, num_workers)
    assert "correct this and rerun the same command to resume" in str(caught.value)
    assert os.listdir(config.data.corpus_dir) == ["unfinished"]


def test_a_dataset_is_prepared_before_any_text_is_tokenized(
    config, documents, monkeypatch
):
    write_source(config, documents)
    specs = (*config.data.sources, "tfds:no_such_dataset")
    monkeypatch.setattr(input_groups, "write_runs", pytest.fail)
    fails_at_once(changed(config, "data", sources=specs), "no_such_dataset")


def fails_at_once(config, message):
    """Prepares a corpus; checks the error, and that the directory is removed."""
    with pytest.raises(ConfigError, match=message) as caught:
        build.prepare(config, 1)
    assert "resume" not in str(caught.value)
    assert not os.path.exists(config.data.corpus_dir)


def test_an_error_before_any_text_is_read_leaves_nothing(config):
    fails_at_once(changed(config, "tokenizer", vocab_file="/nowhere"), "is not a file")
    fails_at_once(elsewhere(config, "caf\udce9"), "udce9' is not UTF-8; give another")
    config = changed(config, "data", sources=("text:/nowhere/*.txt",))
    fails_at_once(config, "no file matches")


def test_too_little_text(config):
    write_source(config, [])
    check_fails(config, "no text in")
    write_source(config, [["w1", "w2", "w3"]])
    check_fails(config, r"contain [01] training document\(s\)")


@pytest.fixture
def five_files(tmp_path):
    """A config with five input files of several batches each."""
    for i in range(5):
        documents = [[f"w{i}", *d] for d in make_documents(60, seed=i)]
        write_documents(tmp_path / f"{i}.txt", documents)
    return make_config(tmp_path, sources=(f"text:{tmp_path}/[0-4].txt",))


def check_resumes(config, num_encoded):
    """Prepares again; checks the number of encoded batches, and the corpus."""
    assert len(encoded_batches(config)) == num_encoded
    assert files(config.data.corpus_dir) == made(elsewhere(config, "straight"))


def num_batches(config):
    """Returns the number of batches of each file."""
    found = Counter()
    for name in encoded_batches(elsewhere(config, "counted")):
        found[sorted_runs.group_of(name)] += 1
    return list(found.values())


@pytest.mark.slow
def test_bad_lines_are_reported_together_and_only_their_files_are_encoded_again(
    five_files, tmp_path
):
    config = five_files
    counts = num_batches(config)
    assert len(counts) == 5 and min(counts) > 1
    good = {i: (tmp_path / f"{i}.txt").read_bytes() for i in (1, 4)}
    for i, content in good.items():
        bad = content.replace(b"w7", b"w\xff", 2)
        (tmp_path / f"{i}.txt").write_bytes(bad)
    message = r"^4 lines or files .*\(1\) /.*/1.txt:\d+ is not UTF-8.*/4.txt:\d+ is"
    check_fails(config, message, 2)
    for i, content in good.items():
        (tmp_path / f"{i}.txt").write_bytes(content)
    check_resumes(config, counts[1] + counts[4])


@pytest.mark.slow
def test_after_allowing_bad_lines_only_their_files_are_encoded_again(
    five_files, tmp_path
):
    config = five_files
    counts = num_batches(config)
    with open(tmp_path / "3.txt", "ab") as file:
        file.write(b"\n\nw1 caf\xe9 w2\n")
    check_fails(config, r"3.txt:\d+ is not UTF-8.* or set config.data.invalid_utf8")
    config = changed(config, "data", invalid_utf8="replace")
    check_resumes(config, counts[3])
    manifest = json.loads(files(config.data.corpus_dir)["manifest.json"])
    assert manifest["cleaning"] == {"lines_repaired": 1}


@pytest.mark.slow
def test_a_file_added_or_removed_after_an_error(five_files, tmp_path):
    config = changed(five_files, "data", num_shards=200, num_streams=1)
    counts = num_batches(changed(config, "data", num_shards=2))
    check_fails(config, r"num_shards=200 leaves \d+ shard")
    config = changed(config, "data", num_shards=2)
    os.remove(tmp_path / "0.txt")
    write_documents(tmp_path / "00.txt", make_documents(5))
    config = changed(config, "data", sources=[f"text:{tmp_path}/[0-4]*.txt"])
    assert sum(counts) > 10
    check_resumes(config, 1)


@pytest.mark.parametrize(
    "values, max_bytes, message",
    [
        ({"num_shards": 500, "num_streams": 1}, 2**20, "num_shards=500 leaves"),
        ({"validation_fraction": 1e-6}, 2**20, "fraction=1e-06 holds out none of 1"),
        ({}, 1000, r"/train-\d+-of-00002 would .*num_shards by at least \d+"),
    ],
)
def test_an_invalid_setting_is_an_error_before_any_shard_is_written(
    config, monkeypatch, values, max_bytes, message
):
    with monkeypatch.context() as patch:
        patch.setattr(build, "_write_shards", None)
        patch.setattr(keyed, "MAX_SHARD_BYTES", max_bytes)
        check_fails(changed(config, "data", **values), message)
    check_resumes(config, 0)


@pytest.mark.slow
def test_a_large_held_out_set_gets_several_shards(config, monkeypatch):
    one = places(build.prepare(elsewhere(config, "one"), 1))
    monkeypatch.setattr(keyed, "VALIDATION_BYTES", 300)
    found = build.prepare(config, 1)
    shards = found.shards["validation"]
    assert len(shards) > 3 and shards[1].file.startswith("validation-00001-of-0000")
    (stream,) = visits.make_streams(found, config, "validation", 0, 0)
    assert [shard for _, shard in stream.shards] == list(shards)
    several = places(found)
    assert several.keys() == one.keys()
    for document, (split, file) in one.items():
        assert several[document][0] == split
        assert split == "validation" or several[document][1] == file


def test_shards_of_other_settings_are_written_again(config):
    """The names of the input files, their sizes and the vocabulary are the same."""
    directory = config.data.corpus_dir
    write_source(config, [["w1 " * 400, "w2"], *make_documents(60)])
    with interrupted():
        build.prepare(changed(config, "data", max_line_bytes=1024), 1)
    names = corpus.shard_files(directory)
    late = [f"unfinished/shards/{name}.json" for name in names] + names
    kept = {f"{directory}/{x}": storage.read(f"{directory}/{x}") for x in late}
    with interrupted():
        build.prepare(config, 1)
    for path, data in kept.items():  # by a process that has lost its lease
        storage.write(path, data)
    assert made(config) == made(elsewhere(config, "straight"))


@pytest.mark.parametrize(
    ("pattern", "kept"),
    [
        *(("unfinished/shards/train-*", kept) for kept in (0, None)),
        *(("train-*", kept) for kept in (50, None)),
        *(("unfinished/runs/run-*", kept) for kept in (0, 1, 50, None)),
    ],
)
def test_damaged_work_is_written_again_or_named(config, pattern, kept):
    """A power failure leaves parts of files; a damaged result may still be JSON."""
    with interrupted():
        build.prepare(config, 1)
    file = min(pathlib.Path(config.data.corpus_dir).glob(pattern))
    data = file.read_bytes()
    file.write_bytes(data.replace(b"1", b"12") + b"3" if kept is None else data[:kept])
    if "run-" in pattern:
        with pytest.raises(CorruptError, match=f"{file} is corrupt; remove it"):
            build.prepare(config, 1)
        file.unlink()
    assert made(config) == made(elsewhere(config, "straight"))


def test_work_of_another_version_of_unicode_is_not_reused(config):
    other = mock.patch.object(build.unicodedata, "unidata_version", "1.0.0")
    with other, interrupted():
        build.prepare(config, 1)
    assert len(encoded_batches(config)) >= 5  # all of them


def test_the_vocabulary_of_a_large_text_is_kept_when_files_change(
    five_files, tmp_path, monkeypatch
):
    monkeypatch.setattr(build, "SMALL_BYTES", 0)
    config = changed(trains(five_files), "data", num_shards=200, num_streams=1)
    check_fails(config, "num_shards=200 leaves")
    config = changed(config, "data", num_shards=2)
    counts = num_batches(config)
    (tmp_path / "2.txt").write_bytes((tmp_path / "2.txt").read_bytes() + b" banana")

    def trained(*_):
        raise AssertionError("a vocabulary was trained")

    monkeypatch.setattr(training, "train", trained)
    assert len(encoded_batches(config)) == counts[2]


def test_unknown_tokens_are_counted_by_source(tmp_path, capsys):
    """Every tenth word of the second source is not in the vocabulary."""
    specs = tuple(f"text:{tmp_path}/{name}.txt" for name in "ab")
    config = make_config(tmp_path, sources=specs)
    unknown = ["w1 w2 w3 w4 w5 w6 w7 w8 w9 \u4e00", "w1 w2 w3 w4 w5 w6 w7 w8 w9 \u4e01"]
    parts = [make_documents(60), [[f"w{i} w0", *unknown] for i in range(50)]]
    for number, part in enumerate(parts):
        write_source(config, part, number)
    manifest = json.loads(made(config)["manifest.json"])
    assert manifest["unknown_share"] == [0.0, round(2 / 22, 6)]
    assert not any("tokens" in name for name in manifest["cleaning"])
    lines = capsys.readouterr().out.splitlines()
    assert f"[UNK] tokens: 0.00% of {specs[0]!r}, 9.09% of {specs[1]!r}" in lines
    assert lines[-1].startswith(
        f"warning: 9.1% of the tokens of {specs[1]!r} are [UNK]"
    )


MEASURE = """
import json, multiprocessing, re, sys
from bert_jax import config
from bert_jax.data.corpus import build, workers
from bert_jax.data.tokenizers import training

def peak(pid):
    with open(f"/proc/{pid}/status") as file:
        return int(re.search(r"VmHWM:\\s+(\\d+) kB", file.read())[1]) * 1024

peaks, run = [0], workers.run

def watched(*args, **kwargs):
    for result in run(*args, **kwargs):
        peaks.extend(peak(child.pid) for child in multiprocessing.active_children())
        yield result

workers.run = watched
build.RUN_BYTES = build.SMALL_BYTES = 2**20
training.TRAINING_BYTES["wordpiece"] = 2**22
build.prepare(config.from_saved(json.load(open(sys.argv[1]))), 2)
print(json.dumps([peak("self"), max(peaks)]))
"""


@pytest.mark.slow
def test_memory_does_not_grow_with_the_text(tmp_path):
    """Measures the process that reads and the largest worker process."""
    peaks = []
    documents = make_documents(25_000, max_sentences=40)
    for num_copies in (1, 4):
        directory = tmp_path / str(num_copies)
        directory.mkdir()
        for i in range(25 * num_copies):
            part = documents[1000 * (i % 25) :][:1000]
            text = "\n\n".join("\n".join([f"w{i // 25}", *d]) for d in part)
            (directory / f"{i}.txt").write_text(text)
        config = make_config(
            directory, sources=(f"text:{directory}/[0-9]*.txt",), num_shards=16
        )
        path = directory / "config.json"
        path.write_text(trains(config).to_json())
        program = [sys.executable, "-c", MEASURE, str(path)]
        done = subprocess.run(program, capture_output=True, text=True, check=True)
        peaks.append(json.loads(done.stdout.splitlines()[-1]))
    # TensorFlow alone takes 740 MB; the shard in memory grows with the text.
    assert max(map(max, peaks)) < 1e9
    for one, four in zip(*peaks, strict=True):
        assert four < one + 40e6
