"""Runs whose text, corpus and workdir are in a bucket, which fails.

A local server has the protocol of Google Cloud Storage, see tests/fake_bucket.py.
"""

import json
import os
import pathlib
import random
import re
import signal
import sys
import time

import pytest

from bert_jax.checkpoint import integrity
from tests.commands import (
    ENV,
    ROOT,
    capture,
    run,
    run_code,
    run_well,
    small_run,
    start,
    write_text,
)
from tests.fake_bucket import Bucket
from tests.runs import assert_same_bits, assert_same_metrics, exact_lines

pytestmark = pytest.mark.slow

# KILLS=20 passed as well.
NUM_KILLS = int(os.environ.get("KILLS", "2"))
SHORT = {"phases[0].num_steps": 20, "eval.every_steps": 20}
LONG = {
    "phases[0].num_steps": 40 * (NUM_KILLS + 1),
    "checkpoint.every_steps": 5,
    "eval.every_steps": 60,
    "log_every_steps": 5,
}
WORKDIR = "gs://runs/some/run"
TEXT = "texts/some/documents.txt"


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """A directory with a text, its corpus and two runs, all made without a bucket."""
    directory = tmp_path_factory.mktemp("text")
    write_text(directory / "documents.txt")
    for name, options in {"run": SHORT, "long": LONG}.items():
        arguments = small_run(directory, **options)
        run_well("bert_jax.train", *arguments, f"--workdir={directory / name}")
    return directory


@pytest.fixture
def bucket(text):
    """Buckets, one of which holds the text."""
    with Bucket("texts", "corpora", "runs") as bucket:
        bucket.objects[TEXT] = (text / "documents.txt").read_bytes()
        yield bucket


@pytest.fixture(scope="module")
def corpus(text, tmp_path_factory):
    """The objects of the corpus that is prepared from the text in a bucket."""
    with Bucket("texts", "corpora") as bucket:
        bucket.objects[TEXT] = (text / "documents.txt").read_bytes()
        arguments = in_bucket(tmp_path_factory.mktemp("corpus"))
        run_well("bert_jax.prepare", *arguments, **bucket.environment)
        return dict(bucket.objects)


@pytest.fixture
def prepared(bucket, corpus):
    """The buckets, one of which holds the corpus of the text."""
    bucket.objects.update(corpus)
    return bucket


def in_bucket(directory, **changes):
    return small_run(
        directory,
        **{
            "data.sources": "('text:gs://texts/some/*.txt',)",
            "data.corpus_dir": "gs://corpora/small",
        }
        | changes,
    )


def shards_of(manifest):
    found = json.loads(manifest)
    return {
        file: sha256
        for columns in found["splits"].values()
        for file, sha256 in zip(columns["file"], columns["sha256"], strict=True)
    }


def assert_same_corpus(bucket, text):
    local = shards_of((text / "corpus" / "manifest.json").read_bytes())
    assert shards_of(bucket.objects["corpora/small/manifest.json"]) == local
    names = {name.removeprefix("corpora/small/") for name in bucket.objects}
    names -= {TEXT}
    assert names == {"manifest.json", "vocab.txt", *local}


def faults(seed, count=8):
    """Returns errors for some requests of each kind."""
    rng = random.Random(seed)
    kinds = [503, 503, 500, 429, 408, "reset"]
    return {
        pattern: [rng.choice(kinds) for _ in range(count // 4)]
        for pattern in (
            "^GET .*prefix=",  # lists
            "^GET /download/",  # reads
            "^(POST|PUT) /upload",
            "^(POST .*rewriteTo|DELETE)",
        )
    }


def test_transient_errors_of_a_bucket_change_nothing(bucket, text, tmp_path):
    """Requests of all kinds fail while a corpus is prepared and a run is trained."""
    bucket.faults = faults(seed=0)
    result = run("bert_jax.prepare", *in_bucket(tmp_path), **bucket.environment)
    assert result.returncode == 0, result.stderr
    assert sum(bucket.answered.values()) >= 6
    assert_same_corpus(bucket, text)

    bucket.faults = faults(seed=1) | {"ocdbt": [503, "reset", 429]}
    train(bucket, tmp_path, **SHORT)
    assert not bucket.faults["ocdbt"], bucket.faults
    assert_same_run(bucket, text / "run", 20)


def train(bucket, tmp_path, code=0, **options):
    arguments = *in_bucket(tmp_path, **options), f"--workdir={WORKDIR}"
    result = run("bert_jax.train", *arguments, **bucket.environment)
    assert result.returncode == code, result.stdout + result.stderr
    return result


def downloaded(bucket: Bucket, directory: pathlib.Path) -> pathlib.Path:
    """Copies the workdir in a bucket to a new directory."""
    prefix = WORKDIR.removeprefix("gs://") + "/"
    for name, content in bucket.objects.items():
        if name.startswith(prefix):
            path = directory / name.removeprefix(prefix)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
    return directory


def assert_same_run(bucket, expected, step) -> pathlib.Path:
    """Compares the run in the bucket with another; returns a copy of its workdir."""
    found = downloaded(bucket, expected.with_name(f"{expected.name}-{time.time_ns()}"))
    assert_same_bits(found, expected, step)
    assert exact_lines(found) == exact_lines(expected)
    assert (found / "loss_curves.png").stat().st_size > 10_000
    (lock,) = found.glob("lock/*")
    assert json.loads(lock.read_text()) == {"released": True}
    return found


def test_kills_of_a_run_in_a_bucket_change_no_bit(prepared, text, tmp_path):
    """The first signal is a SIGTERM, which releases the lock."""
    arguments = *in_bucket(tmp_path, **LONG), f"--workdir={WORKDIR}"
    process = start("bert_jax.train", *arguments, **prepared.environment)
    wait_for_a_save(prepared, process)
    second = run("bert_jax.train", *arguments, **prepared.environment)
    if process.poll() is None:  # two runs in one workdir
        assert second.returncode == 2, second.stderr
        assert f"is being written by process {process.pid} on" in second.stderr
    process.send_signal(signal.SIGTERM)
    stdout, stderr = process.communicate(timeout=120)
    assert process.returncode == 75, stdout + stderr
    (lock,) = (name for name in prepared.objects if "/lock/" in name)
    assert json.loads(prepared.objects[lock]) == {"released": True}
    rng = random.Random(0)
    for i in range(NUM_KILLS):
        process = start("bert_jax.train", *arguments, **prepared.environment)
        if i % 2:  # at any time after the start
            time.sleep(rng.uniform(1.0, 10.0))
        else:  # during steps and saves
            wait_for_a_save(prepared, process)
            time.sleep(rng.uniform(0.0, 1.0))
        process.send_signal(signal.SIGKILL)
        stdout, stderr = process.communicate()
        assert process.returncode in (-signal.SIGKILL, 0), stdout + stderr
    train(prepared, tmp_path, **LONG)
    found = downloaded(prepared, tmp_path / "found")
    assert_same_bits(found, text / "long", LONG["phases[0].num_steps"])
    assert_same_metrics(found, text / "long")


def saved(bucket):
    """Returns the steps whose checkpoints are committed."""
    names = list(bucket.objects)  # at once: the server adds objects meanwhile
    found = (re.search(r"run/checkpoints/(\d+)/commit", name) for name in names)
    return {int(match[1]) for match in found if match}


def wait_for_a_save(bucket, process):
    before, deadline = saved(bucket), time.monotonic() + 600
    while saved(bucket) <= before and process.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_a_flipped_bit_of_an_object_is_detected(prepared, text, tmp_path):
    train(prepared, tmp_path, **SHORT | {"checkpoint.every_steps": 10})
    prefix = WORKDIR.removeprefix("gs://")
    name = max(
        (n for n in prepared.objects if n.startswith(f"{prefix}/checkpoints/20/state")),
        key=lambda name: len(prepared.objects[name]),
    )
    content = bytearray(prepared.objects[name])
    content[len(content) // 2] ^= 1
    prepared.objects[name] = bytes(content)
    verify = "bert_jax.checkpoint", "verify", f"--workdir={WORKDIR}"
    result = run(*verify, **prepared.environment)
    assert result.returncode == 78 and "CORRUPT" in result.stdout, result.stderr
    result = train(prepared, tmp_path, **SHORT | {"checkpoint.every_steps": 10})
    assert "checkpoint 20 is corrupt" in result.stdout
    assert f"{prefix}/corrupt_checkpoints/20/SHA256SUMS" in prepared.objects
    assert "verified" in run_well(*verify, **prepared.environment)
    assert_same_bits(downloaded(prepared, tmp_path / "found"), text / "run", 20)
    # The other commands read the bucket as well.
    where = f"--workdir={WORKDIR}"
    line = run_well("bert_jax.evaluate", where, **prepared.environment)
    assert '"step": 20' in line
    output = "--output=gs://runs/exported"
    run_well("bert_jax.export", where, output, **prepared.environment)
    assert {"runs/exported/model.safetensors", "runs/exported/SHA256SUMS"} <= set(
        prepared.objects
    )
    options = SHORT | {
        "init_from": WORKDIR,
        "tokenizer.vocab_file": "gs://corpora/small/vocab.txt",
        "data.corpus_dir": tmp_path / "again",
        "data.sources": f"('text:{text}/documents.txt',)",
    }
    arguments = *in_bucket(tmp_path, **options), f"--workdir={tmp_path / 'second'}"
    stdout = run_well("bert_jax.train", *arguments, **prepared.environment)
    assert "from the weights in gs://runs/some/run" in stdout


def test_two_processes_share_nothing_but_the_bucket(prepared, text, tmp_path):
    arguments = *in_bucket(tmp_path, **SHORT), f"--workdir={WORKDIR}"
    local = [sys.executable, ROOT / "launch/local.py", "--processes=2"]
    done = capture(*local, *arguments, env=ENV | prepared.environment, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    found = downloaded(prepared, tmp_path / "found")
    assert integrity.verify(str(found), 20) == []
    one, two = exact_lines(text / "run"), exact_lines(found)
    assert [line[0] for line in one] == [line[0] for line in two]
    for a, b in zip(one, two, strict=True):
        assert a[1] == b[1] or a[1] == pytest.approx(b[1], rel=1e-5)


def test_permission_errors_are_one_line_and_not_retried(prepared, tmp_path):
    prepared.faults = {"upload.*runs": [403] * 99}
    (line,) = train(prepared, tmp_path, code=2, **SHORT).stderr.splitlines()
    assert re.search("gs://runs/.*permission denied", line), line
    prepared.faults = {"": [401] * 100}
    result = run("bert_jax.prepare", *in_bucket(tmp_path), **prepared.environment)
    assert result.returncode == 2, result.stderr
    (line,) = result.stderr.splitlines()
    assert re.search("no credentials|permission denied", line), line


# Neither gcsfs, which retries for half a minute, nor the package repeats a request.
WITH_ONE_ATTEMPT = """
import asyncio, runpy, sys, types
import gcsfs.retry
from bert_jax.storage import retries
gcsfs.retry.asyncio = types.SimpleNamespace(sleep=lambda secs: asyncio.sleep(0))
retries.ATTEMPTS = 1
runpy.run_module(sys.argv.pop(1), run_name="__main__", alter_sys=True)
"""


def during_an_outage(bucket, *command):
    """Returns the last line of a command that ends since storage fails."""
    done = run_code(WITH_ONE_ATTEMPT, *command, **bucket.environment)
    assert done.returncode == 76, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    bucket.faults = {}
    return done.stderr.splitlines()[-1]


def test_an_outage_ends_the_run_which_resumes(prepared, text, tmp_path):
    """Saves fail from the second on: no checkpoint is lost."""
    prepared.faults = {"checkpoints%2F10.*": [503] * 10_000}
    options = SHORT | {"checkpoint.every_steps": 5}
    arguments = *in_bucket(tmp_path, **options), f"--workdir={WORKDIR}"
    last = during_an_outage(prepared, "bert_jax.train", *arguments)
    assert "storage failed" in last
    assert 5 in saved(prepared)
    train(prepared, tmp_path, **options)
    assert_same_bits(downloaded(prepared, tmp_path / "found"), text / "run", 20)


def test_an_unavailable_bucket_ends_prepare_which_resumes_later(bucket, text, tmp_path):
    bucket.faults = {"^(POST|PUT) /upload.*name=small%2Fmanifest": [503] * 100}
    last = during_an_outage(bucket, "bert_jax.prepare", *in_bucket(tmp_path))
    assert "gs://corpora/small/manifest.json: storage failed 1" in last
    assert "rerun the same command" in last
    assert "corpora/small/manifest.json" not in bucket.objects
    run_well("bert_jax.prepare", *in_bucket(tmp_path), **bucket.environment)
    assert_same_corpus(bucket, text)
