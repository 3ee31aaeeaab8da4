"""Runs whose text, corpus and workdir are in a bucket, which fails.

A local server has the protocol of Google Cloud Storage, see tests/fake_bucket.py.
"""

import json
import os
import pathlib
import random
import re
import signal
import subprocess
import sys
import time

import pytest

from bert_jax.checkpoint import integrity
from tests.commands import ENV, ROOT, run, run_well, small_run, start, write_text
from tests.fake_bucket import Bucket
from tests.runs import assert_same_bits, exact_lines

pytestmark = pytest.mark.slow

# KILLS=20, with 600 steps, passed as well.
NUM_KILLS = int(os.environ.get("KILLS", "4"))
SHORT = {"phases[0].num_steps": 20, "eval.every_steps": 20}
LONG = {
    "phases[0].num_steps": 30 * NUM_KILLS,
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
    arguments = *in_bucket(tmp_path, **LONG), f"--workdir={WORKDIR}"
    rng, steps = random.Random(0), []
    for i in range(NUM_KILLS):
        process = start("bert_jax.train", *arguments, **prepared.environment)
        before, deadline = len(saved(prepared)), time.monotonic() + 600
        if i % 4 != 3:  # during steps and saves, otherwise at any time after the start
            while len(saved(prepared)) == before and process.poll() is None:
                assert time.monotonic() < deadline
                time.sleep(0.005)
            time.sleep(rng.uniform(0.0, 1.0))
        else:
            time.sleep(rng.uniform(1.0, 10.0))
        process.send_signal(signal.SIGKILL)
        stdout, stderr = process.communicate()
        assert process.returncode in (-signal.SIGKILL, 0), stdout + stderr
        steps.append(max(saved(prepared), default=0))
    assert len(set(steps)) > NUM_KILLS / 3, steps
    train(prepared, tmp_path, **LONG)
    assert_same_run(prepared, text / "long", LONG["phases[0].num_steps"])


def saved(bucket):
    """Returns the steps whose checkpoints are committed."""
    names = [
        re.search(r"run/checkpoints/(\d+)/commit", name) for name in bucket.objects
    ]
    return {int(match[1]) for match in names if match}


def test_sigterm_releases_the_lock_and_the_run_resumes(prepared, text, tmp_path):
    arguments = *in_bucket(tmp_path, **LONG), f"--workdir={WORKDIR}"
    process = start("bert_jax.train", *arguments, **prepared.environment)
    while not saved(prepared):
        assert process.poll() is None
        time.sleep(0.01)
    second = run("bert_jax.train", *arguments, **prepared.environment)
    if process.poll() is None:  # two runs in one workdir
        assert second.returncode == 2, second.stderr
        assert f"is being written by process {process.pid} on" in second.stderr
    process.send_signal(signal.SIGTERM)
    stdout, stderr = process.communicate(timeout=120)
    assert process.returncode == 75, stdout + stderr
    (lock,) = (name for name in prepared.objects if "/lock/" in name)
    assert json.loads(prepared.objects[lock]) == {"released": True}
    train(prepared, tmp_path, **LONG)
    found = downloaded(prepared, tmp_path / "found")
    assert_same_bits(found, text / "long", LONG["phases[0].num_steps"])


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
    done = subprocess.run(
        [*local, *arguments],
        env=ENV | prepared.environment,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = downloaded(prepared, tmp_path / "found")
    assert integrity.verify(str(found), 20) == []
    one, two = exact_lines(text / "run"), exact_lines(found)
    assert [line[0] for line in one] == [line[0] for line in two]
    for a, b in zip(one, two, strict=True):
        assert a[1] == b[1] or a[1] == pytest.approx(b[1], rel=1e-5)


@pytest.mark.parametrize(
    ("faults", "message"),
    [
        ({"upload.*runs": [403] * 99}, "gs://runs/.*permission denied"),
        ({"/b/runs": [404] * 99}, "gs://runs/.*there is no such file or bucket"),
    ],
)
def test_a_workdir_without_permission_is_one_line(prepared, tmp_path, faults, message):
    prepared.faults = faults
    stderr = train(prepared, tmp_path, code=2, **SHORT).stderr
    (line,) = stderr.splitlines()
    assert re.search(message, line), line


def test_an_outage_ends_the_run_which_resumes(prepared, text, tmp_path):
    """Saves fail from the second on: no checkpoint is lost."""
    prepared.faults = {"checkpoints%2F10.*": [503] * 10_000}
    options = SHORT | {"checkpoint.every_steps": 5}
    stderr = train(prepared, tmp_path, code=76, **options).stderr
    assert "storage failed" in stderr.splitlines()[-1], stderr
    prepared.faults = {}
    train(prepared, tmp_path, **options)
    assert_same_bits(downloaded(prepared, tmp_path / "found"), text / "run", 20)


# gcsfs retries each attempt for half a minute.
WITH_ONE_ATTEMPT = """
import runpy
from bert_jax.storage import retries
retries.ATTEMPTS = 1
runpy.run_module("bert_jax.prepare", run_name="__main__", alter_sys=True)
"""


def test_an_unavailable_bucket_ends_prepare_which_resumes_later(bucket, text, tmp_path):
    bucket.faults = {"^(POST|PUT) /upload.*name=small%2Fmanifest": [503] * 100}
    done = subprocess.run(
        [sys.executable, "-c", WITH_ONE_ATTEMPT, *in_bucket(tmp_path)],
        env=ENV | bucket.environment,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 76, done.stderr
    last = done.stderr.splitlines()[-1]
    assert "gs://corpora/small/manifest.json: storage failed 1" in last
    assert "rerun the same command" in last and "Traceback" not in done.stderr
    assert "corpora/small/manifest.json" not in bucket.objects
    bucket.faults = {}
    run_well("bert_jax.prepare", *in_bucket(tmp_path), **bucket.environment)
    assert_same_corpus(bucket, text)


@pytest.mark.parametrize(
    ("requests", "status", "message"),
    [
        ("/o/some%2Fdoc|GET /texts/", 403, "gs://texts/some/doc.* permission denied"),
        ("", 401, "no credentials|permission denied"),
    ],
)
def test_permission_errors_are_not_retried(bucket, tmp_path, requests, status, message):
    bucket.faults = {requests: [status] * 100}
    result = run("bert_jax.prepare", *in_bucket(tmp_path), **bucket.environment)
    assert result.returncode == 2, result.stderr
    (line,) = result.stderr.splitlines()
    assert re.search(message, line), line
    assert "corpora/small/manifest.json" not in bucket.objects
