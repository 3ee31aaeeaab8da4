"""Sources and corpus in a failing bucket: TensorFlow's gs:// with a local server."""

import json
import random
import re

import pytest

from tests.commands import run, run_well, small_run, write_text
from tests.fake_bucket import Bucket

pytestmark = pytest.mark.slow

SHORT = {"phases[0].num_steps": 20, "eval.every_steps": 20}


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """A directory with a text, its corpus and a run, all made without a bucket."""
    directory = tmp_path_factory.mktemp("text")
    write_text(directory / "documents.txt")
    arguments = small_run(directory, **SHORT)
    run_well("bert_jax.train", *arguments, f"--workdir={directory / 'run'}")
    return directory


@pytest.fixture
def bucket(text, tmp_path):
    """A bucket that holds the text."""
    with Bucket(tmp_path) as bucket:
        content = (text / "documents.txt").read_bytes()
        bucket.objects["texts/some/documents.txt"] = content
        yield bucket


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
    names -= {"", "texts/some/documents.txt", "corpora/"}
    assert names == {"manifest.json", "vocab.txt", *local}


def faults(seed, count=8):
    """Returns errors for some requests of each kind."""
    rng = random.Random(seed)
    kinds = [503, 503, 500, 429, 408, "reset"]
    return {
        pattern: [rng.choice(kinds) for _ in range(count // 4)]
        for pattern in (
            "^GET .*prefix=",  # lists
            "^GET /(texts|corpora)/",  # reads
            "^(POST|PUT) /upload",
            "^(POST .*rewriteTo|DELETE)",
        )
    }


def test_transient_errors_of_a_bucket_change_nothing(bucket, text, tmp_path):
    """Lists, reads, writes and renames fail while a corpus is prepared and read."""
    bucket.faults = faults(seed=0)
    result = run("bert_jax.prepare", *in_bucket(tmp_path), **bucket.environment)
    assert result.returncode == 0, result.stderr
    retries = re.findall(
        r"^storage: gs://.*; retrying in [\d.]+ s", result.stderr, re.M
    )
    # Cleanup after another error logs nothing, so there may be fewer retries.
    assert 6 <= len(retries) <= sum(bucket.answered.values()) == 8
    assert_same_corpus(bucket, text)

    bucket.faults = {"^GET /corpora/.*train": [503, "reset"], "^GET .*prefix=": [500]}
    workdir = tmp_path / "run"
    arguments = *in_bucket(tmp_path, **SHORT), f"--workdir={workdir}"
    result = run("bert_jax.train", *arguments, **bucket.environment)
    assert result.returncode == 0, result.stderr
    assert not any(bucket.faults.values()), bucket.faults
    assert losses(workdir) == losses(text / "run")


def losses(workdir):
    lines = [
        json.loads(x) for x in (workdir / "metrics.jsonl").read_text().splitlines()
    ]
    return [
        (line["step"], key, line[key])
        for line in lines
        for key in ("loss", "eval_masked_lm_loss")
        if key in line
    ]


def test_an_unavailable_bucket_ends_prepare_which_resumes_later(bucket, text, tmp_path):
    bucket.faults = {"^(POST|PUT) /upload.*name=small%2Ftrain": [503] * 100}
    result = run("bert_jax.prepare", *in_bucket(tmp_path), **bucket.environment)
    assert result.returncode == 76, result.stderr
    last = result.stderr.splitlines()[-1]
    assert last.startswith("error: gs://corpora/small/train-00000-of-00001: storage fa")
    assert "7 times in a row" in last and "Traceback" not in result.stderr
    assert "corpora/small/manifest.json" not in bucket.objects
    bucket.faults = {}
    run_well("bert_jax.prepare", *in_bucket(tmp_path), **bucket.environment)
    assert_same_corpus(bucket, text)


@pytest.mark.parametrize(
    ("requests", "status", "message"),
    [
        ("/o/some%2Fdoc|GET /texts/", 403, "gs://texts/some/doc.* permission denied"),
        ("GET .*/b/texts/", 404, "gs://texts/.* (no such file|no file matches)"),
        ("upload.*small", 403, "gs://corpora/small.* permission denied"),
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


def test_init_from_a_run_whose_corpus_is_in_a_bucket(bucket, text, tmp_path):
    """The vocabulary of config.init_from is read from the bucket."""
    run_well("bert_jax.prepare", *in_bucket(tmp_path), **bucket.environment)
    vocabulary = tmp_path / "vocab.txt"
    vocabulary.write_bytes(bucket.objects["corpora/small/vocab.txt"])
    options = {"phases[0].num_steps": 4, "checkpoint.every_steps": 4}
    first, second = tmp_path / "first", tmp_path / "second"
    arguments = *in_bucket(tmp_path, **options), f"--workdir={first}"
    run_well("bert_jax.train", *arguments, **bucket.environment)
    arguments = *in_bucket(tmp_path, init_from=first, **options), f"--workdir={second}"
    run_well("bert_jax.train", *arguments, **bucket.environment)
