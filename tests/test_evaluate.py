"""Tests of bert_jax.evaluate, as a command on a run of 20 steps and by hand."""

import dataclasses
import json
import shutil

import numpy as np
import pytest

from bert_jax.checkpoint import workdir as workdir_lib
from bert_jax.data.corpus import corpus as corpus_lib
from bert_jax.training import evaluation
from tests.commands import ENV, run, run_well


def test_prints_one_json_object_that_training_saw_too(trained):
    stdout = run_well("bert_jax.evaluate", f"--workdir={trained / 'run'}")
    (line,) = stdout.splitlines()
    found = json.loads(line)
    assert set(found) == {
        "step",
        "masked_lm_loss",
        "masked_lm_accuracy",
        "next_sentence_loss",
        "next_sentence_accuracy",
        "unigram_entropy",
        "next_sentence_majority",
    }
    logged = [json.loads(x) for x in (trained / "run/metrics.jsonl").open()][-1]
    assert found["step"] == logged["step"] == 20
    for name in ("masked_lm_loss", "next_sentence_accuracy"):
        assert found[name] == pytest.approx(logged[f"eval_{name}"], rel=1e-5)
    assert 0.5 <= found["next_sentence_majority"] < 1
    assert 2 < found["unigram_entropy"] < np.log(120)


@pytest.mark.slow
def test_takes_an_older_step_and_another_number_of_devices(trained):
    stdout = run_well(
        "bert_jax.evaluate", f"--workdir={trained / 'run'}", "--step=10", devices=4
    )
    assert json.loads(stdout)["step"] == 10


@pytest.mark.slow
def test_a_corpus_that_was_moved_is_asked_for_and_found(trained, tmp_path):
    """Also by `export`, which opens a run the same way."""
    workdir, moved = tmp_path / "run", tmp_path / "moved"
    shutil.copytree(trained / "run", workdir)
    shutil.copytree(trained / "corpus", moved)
    config = json.loads((workdir / "config.json").read_text())
    config["data"]["corpus_dir"] = "gone"
    (workdir / "config.json").write_text(json.dumps(config))
    result = run("bert_jax.evaluate", f"--workdir={workdir}")
    assert result.returncode == 2
    assert "corpus is not at 'gone'" in result.stderr
    assert "use --corpus_dir=DIR" in result.stderr
    arguments = [f"--workdir={workdir}", f"--corpus_dir={moved}"]
    assert json.loads(run_well("bert_jax.evaluate", *arguments))["step"] == 20
    run_well("bert_jax.export", *arguments, f"--output={tmp_path / 'exported'}")
    manifest = json.loads((moved / "manifest.json").read_text())
    manifest["documents"]["repeated"] += 1  # as of a corpus of another text
    manifest["sha256"] = corpus_lib.manifest_digest(manifest)
    (moved / "manifest.json").write_text(json.dumps(manifest))
    result = run("bert_jax.evaluate", *arguments)
    assert result.returncode == 2
    assert "was trained on another corpus" in result.stderr


def test_held_out_rows_have_masks_of_their_own_rate(trained):
    """Whatever rate a run trains at, and no more is kept than was asked for."""
    config = workdir_lib.read_config(str(trained / "run"))
    corpus = corpus_lib.read(config)
    data = dataclasses.replace(config.data, masked_lm_prob=0.3)
    other = dataclasses.replace(config, data=data)
    plain, found = (evaluation.eval_batches(corpus, c, 0) for c in (config, other))
    for a, b in zip(plain, found, strict=True):
        for name in a:
            np.testing.assert_array_equal(a[name], b[name])
            assert b[name].base is None
    often = dataclasses.replace(config.eval, masked_lm_prob=0.3)
    more = evaluation.eval_batches(corpus, dataclasses.replace(config, eval=often), 0)
    masks = [sum(b["masked_lm_weights"].sum() for b in x) for x in (plain, more)]
    assert masks[1] > masks[0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        pytest.param([], "--workdir is missing", marks=pytest.mark.slow),
        pytest.param(
            ["--workdir=/nonexistent"], "has no config.json", marks=pytest.mark.slow
        ),
        (["--workdir=RUN", "--step=7"], "of step 7; available steps: 10, 20"),
    ],
)
def test_errors_are_one_line(trained, arguments, message):
    arguments = [a.replace("RUN", str(trained / "run")) for a in arguments]
    result = run("bert_jax.evaluate", *arguments)
    assert result.returncode == 2
    assert message in result.stderr and result.stderr.count("\n") == 1
    assert result.stdout == ""


@pytest.mark.parametrize(
    ("labels", "weights", "majority"),
    [
        ([[1], [1], [0], [1]], [[1], [1], [1], [1]], 0.75),
        ([[0], [0], [0], [1]], [[1], [0], [0], [1]], 0.5),  # two rows are padding
        ([[0], [0]], [[0], [0]], None),  # rows of one segment
    ],
)
def test_majority_is_the_share_of_the_commoner_label(labels, weights, majority):
    batch = {
        "next_sentence_labels": np.array(labels),
        "next_sentence_weights": np.array(weights, np.float32),
    }
    assert evaluation.next_sentence_majority([batch]) == majority


def test_no_other_devices_than_those_asked_for(trained, monkeypatch):
    monkeypatch.setitem(ENV, "JAX_PLATFORMS", "tpu")
    result = run("bert_jax.evaluate", f"--workdir={trained / 'run'}")
    assert result.returncode == 2 and result.stdout == ""
    last = result.stderr.splitlines()[-1]
    assert "JAX_PLATFORMS=tpu but its devices cannot be opened" in last
