"""Tests of bert_jax.train, as a command in a process of its own."""

import json
import shlex
import shutil
from typing import Any

import pytest

from bert_jax.monitoring import goodput
from tests.commands import error_of, run_until, run_well, small_run, write_text
from tests.conftest import TRAINED
from tests.runs import assert_same_bits, lines


def test_a_run_writes_checkpoints_metrics_and_curves(trained):
    workdir = trained / "run"
    assert sorted(p.name for p in (workdir / "checkpoints").iterdir()) == ["10", "20"]
    assert (workdir / "config.json").is_file()
    assert (workdir / "loss_curves.png").read_bytes().startswith(b"\x89PNG")
    assert list(workdir.glob("events.out.tfevents.*"))
    log = [line for line in lines(workdir) if "loss" in line]
    assert [line["step"] for line in log] == [10, 20]
    assert set(log[0]) == {
        "step",
        "loss",
        "masked_lm_loss",
        "masked_lm_accuracy",
        "next_sentence_loss",
        "next_sentence_accuracy",
        "learning_rate",
        "grad_norm",
        "sequences_per_sec",
        "tokens_per_sec",
        "padding_efficiency",
        "bad_steps",
        "time",
        "goodput",
        *(f"seconds_{part}" for part in goodput.PARTS),
    }
    assert all(line["bad_steps"] == 0 for line in log)
    # Each second since the start of the process is counted in a part.
    total = sum(log[-1][f"seconds_{part}"] for part in goodput.PARTS)
    assert log[-1]["seconds_starting"] > 0 and log[-1]["seconds_steps"] > 0
    assert log[-1]["time"] - log[0]["time"] < total < 600
    assert log[-1]["loss"] < log[0]["loss"]
    assert all(line["sequences_per_sec"] > 0 for line in log)
    assert 0.3 < log[0]["padding_efficiency"] <= 1
    (held_out,) = [line for line in lines(workdir) if "eval_loss" in line]
    settings = ("step", "eval_num_sequences", "eval_masked_lm_prob")
    assert [held_out[name] for name in settings] == [20, 32, 0.15]


def test_the_output_reports_evaluation_and_next_commands(trained):
    stdout = (trained / "stdout").read_text()
    assert "step 20 held out: masked LM loss" in stdout
    assert "Trained to step 20" in stdout
    assert f"python -m bert_jax.export --workdir={trained}/run" in stdout


@pytest.mark.slow
def test_a_complete_run_is_not_changed(trained, tmp_path):
    workdir = shutil.copytree(trained / "run", tmp_path / "run")
    config = small_run(trained, **TRAINED)
    stdout = run_well("bert_jax.train", *config, f"--workdir={workdir}")
    assert "already complete" in stdout and "resuming" not in stdout
    assert "Trained to step 20" in stdout and "On held-out text" in stdout
    assert lines(workdir) == lines(trained / "run")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mesh.data": 3}, "config.mesh (data=3, fsdp=1, tensor=1) does not fit"),
        ({"data.sources": "('text:nothing/*.txt',)"}, "no file matches"),
        ({"seed": "abc"}, "--config.seed=abc is invalid: it must be of type int"),
    ],
)
def test_an_invalid_config_is_one_line_and_writes_nothing(
    trained, tmp_path, changes, message
):
    if "data.sources" in changes:
        changes = changes | {"data.corpus_dir": tmp_path / "no_corpus"}
    arguments = [*small_run(trained, **changes), f"--workdir={tmp_path / 'mistake'}"]
    error = error_of("bert_jax.train", *arguments, devices=8)
    assert error.startswith("error: ") and message in error
    assert not list(tmp_path.iterdir())


def test_the_flags_in_the_error_of_other_values_continue_the_run(trained, tmp_path):
    workdir = f"--workdir={shutil.copytree(trained / 'run', tmp_path / 'run')}"
    other = {"optimizer.learning_rate": 0.5, "optimizer.name": "adamw"}
    other |= {"data.next_sentence": False, "phases[0].max_predictions": 4}
    arguments = [*small_run(trained, **TRAINED, **other), workdir]
    error = error_of("bert_jax.train", *arguments)
    flags = error.partition(" continue it with ")[2].partition(", or use another")[0]
    stdout = run_well("bert_jax.train", *arguments, *shlex.split(flags))
    assert "Trained to step 20" in stdout


# ---------------------------------------------------------------------- streamed text


@pytest.mark.slow
def test_streamed_text_is_shown_trained_on_and_evaluated_and_resumed(tmp_path):
    """A killed run resumes bit-identically, unless a file has changed."""
    write_text(tmp_path / "documents.txt", num_documents=120)
    documents = (tmp_path / "documents.txt").read_text().split("\n\n")
    for i in range(2):
        with open(tmp_path / f"{i}.jsonl", "w") as file:
            for document in documents[i::2]:
                file.write(json.dumps({"text": document}) + "\n")
    changes: dict[str, Any] = {
        "data.sources": f"('jsonl:{tmp_path}/*.jsonl#text',)",
        "data.stream": True,
        "data.num_shards": 2,
        "data.num_streams": 2,
    }
    config = small_run(tmp_path, **changes)
    straight, killed = tmp_path / "straight", tmp_path / "killed"
    shown = run_well("bert_jax.inspect_batch", *config, "--step=7", "--rows=1")
    assert "index: " in shown and "-of-00002" in shown
    stdout = run_well("bert_jax.train", *config, f"--workdir={straight}")
    assert "tokens streamed, indexed in" in stdout
    assert "Trained to step 60" in stdout and "On held-out text" in stdout
    metrics = json.loads(run_well("bert_jax.evaluate", f"--workdir={straight}"))
    assert metrics["step"] == 60 and metrics["next_sentence_loss"] > 0

    arguments = [*config, f"--workdir={killed}"]
    run_until(killed / "checkpoints" / "30", "bert_jax.train", *arguments)
    stdout = run_well("bert_jax.train", *arguments)
    assert "resuming at step 30" in stdout or "already complete" in stdout
    assert_same_bits(killed, straight, 60)
    with open(tmp_path / "1.jsonl", "a") as file:
        file.write(json.dumps({"text": "More."}) + "\n")
    assert "1.jsonl was changed" in error_of("bert_jax.train", *arguments)
