"""Tests of bert_jax.evaluate, as a command on a run of 20 steps."""

import json
import re
import shutil

import numpy as np
import pytest

from bert_jax.errors import ConfigError
from bert_jax.loading import trained_run
from tests.commands import run, run_well, small_run
from tests.corpora import rewrite_manifest


@pytest.fixture(scope="module")
def evaluated(trained):
    """The output of the command for the newest step."""
    return run_well("bert_jax.evaluate", f"--workdir={trained / 'run'}")


def test_prints_one_json_object_with_the_metrics_of_training(trained, evaluated):
    (line,) = evaluated.splitlines()
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


def test_a_config_evaluates_the_model_that_a_run_would_start_from(trained, evaluated):
    """The metrics before a continued run are those of the model that it continues."""
    arguments = small_run(trained, init_from=str(trained / "run"))
    result = run("bert_jax.evaluate", *arguments)
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout) == json.loads(evaluated) | {"step": 0}


@pytest.mark.slow
def test_an_older_step_on_another_number_of_devices(trained):
    stdout = run_well(
        "bert_jax.evaluate", f"--workdir={trained / 'run'}", "--step=10", devices=4
    )
    assert json.loads(stdout)["step"] == 10


@pytest.mark.slow
def test_a_moved_corpus_is_given_by_corpus_dir(trained, tmp_path):
    """This includes `export`, which opens a run in the same way."""
    workdir = shutil.copytree(trained / "run", tmp_path / "run")
    moved = shutil.copytree(trained / "corpus", tmp_path / "moved")
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


def test_the_advice_for_a_corpus_of_another_text_is_right(trained, tmp_path):
    other = shutil.copytree(trained / "corpus", tmp_path / "other")
    recipe = json.loads((other / "manifest.json").read_text())["recipe"]
    rewrite_manifest(other, recipe=recipe | {"data.sources": ["text:other.txt"]})
    workdir = str(trained / "run")
    message = f"not trained on the corpus in {str(other)!r}; use --corpus_dir=DIR with"
    with pytest.raises(ConfigError, match=re.escape(message)):
        trained_run.open_run(workdir, None, str(other))
    # the advice
    assert trained_run.open_run(workdir, None, str(trained / "corpus")).step == 20


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--workdir=RUN", "--step=7"], "of step 7; available steps: 10, 20"),
        (["--config=tiny", "--workdir=RUN"], "--config and --workdir are mutually ex"),
        (["--config=tiny"], "config.init_from is empty; give --config.init_"),
    ],
)
def test_errors_are_one_line(trained, arguments, message):
    arguments = [a.replace("RUN", str(trained / "run")) for a in arguments]
    result = run("bert_jax.evaluate", *arguments)
    assert result.returncode == 2
    assert message in result.stderr and result.stderr.count("\n") == 1
    assert result.stdout == ""
