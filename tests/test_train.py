"""Tests of bert_jax.train, as a command in a process of its own."""

import dataclasses
import json
import pathlib
import shutil
import signal
import time
from typing import Any

import pytest

from bert_jax import train
from bert_jax.checkpoint import integrity
from bert_jax.checkpoint import workdir as workdir_lib
from bert_jax.monitoring import goodput
from bert_jax.training import compilation, resume
from bert_jax.training.compilation import CompiledSteps
from tests.commands import run, run_well, small_run, start, write_text
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


@pytest.mark.slow
def test_sigterm_before_the_first_step_of_a_resumed_run_stops_it(trained, tmp_path):
    many = {"phases[0].num_steps": 100_000, "checkpoint.every_steps": 100_000}
    arguments = [*small_run(trained, **many), f"--workdir={tmp_path}"]
    stopped = start("bert_jax.train", *arguments)
    wait_for_line(stopped, "step 10/")
    stopped.send_signal(signal.SIGTERM)
    stdout, stderr = stopped.communicate()
    assert stopped.returncode == 75, stdout + stderr
    resumed = start("bert_jax.train", *arguments)
    wait_for_line(resumed, "train:")  # it compiles after this line
    (before,) = integrity.steps(str(tmp_path))
    resumed.send_signal(signal.SIGTERM)
    stdout, stderr = resumed.communicate()
    assert resumed.returncode == 75, stdout + stderr
    # JAX checks for signals every second, so steps may have been taken.
    after = integrity.steps(str(tmp_path))[-1]
    assert before <= after < before + 100
    message = f"step {after} is saved" if after > before else "; rerun the same command"
    assert message in stdout.splitlines()[-1]


def wait_for_line(process, beginning: str) -> None:
    assert process.stdout is not None
    while not process.stdout.readline().startswith(beginning):
        assert process.poll() is None, process.communicate()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mesh.data": 3}, "config.mesh (data=3, fsdp=1, tensor=1) does not fit"),
        ({"data.sources": "('text:nothing/*.txt',)"}, "no file matches"),
        ({"optimizer.learning_rat": 1}, "--config.optimizer.learning_rate"),
        ({"seed": "abc"}, "--config.seed=abc is invalid: it must be of type int"),
    ],
)
def test_an_invalid_config_is_one_line_and_writes_nothing(
    trained, tmp_path, changes, message
):
    if "data.sources" in changes:
        changes = changes | {"data.corpus_dir": tmp_path / "no_corpus"}
    arguments = [*small_run(trained, **changes), f"--workdir={tmp_path / 'mistake'}"]
    result = run("bert_jax.train", *arguments, devices=8)
    assert result.returncode == 2
    assert message in result.stderr
    assert result.stderr.startswith("error: ") and result.stderr.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_a_workdir_of_another_run_is_an_error(trained):
    config = small_run(trained, **TRAINED, **{"optimizer.learning_rate": 0.5})
    result = run("bert_jax.train", *config, f"--workdir={trained / 'run'}")
    assert result.returncode == 2
    assert "config.optimizer.learning_rate=0.5" in result.stderr


# ---------------------------------------------------------------------- streamed text


@pytest.fixture(scope="module")
def streamed(tmp_path_factory) -> list[str]:
    """The arguments of a run that streams two JSON Lines files."""
    directory = tmp_path_factory.mktemp("streamed")
    write_text(directory / "documents.txt", num_documents=120)
    documents = (directory / "documents.txt").read_text().split("\n\n")
    for i in range(2):
        with open(directory / f"{i}.jsonl", "w") as file:
            for document in documents[i::2]:
                file.write(json.dumps({"text": document}) + "\n")
    changes: dict[str, Any] = {
        "data.sources": f"('jsonl:{directory}/*.jsonl#text',)",
        "data.stream": True,
        "data.num_shards": 2,
        "data.num_streams": 2,
    }
    return [*small_run(directory, **changes), f"--workdir={directory}/run"]


@pytest.mark.slow
def test_streamed_text_is_shown_trained_on_and_evaluated(streamed):
    config = streamed[:-1]
    shown = run_well("bert_jax.inspect_batch", *config, "--step=7", "--rows=1")
    assert "index: " in shown and "-of-00002" in shown
    stdout = run_well("bert_jax.train", *streamed)
    assert "tokens streamed, indexed in" in stdout
    assert "Trained to step 60" in stdout and "On held-out text" in stdout
    metrics = json.loads(run_well("bert_jax.evaluate", streamed[-1]))
    assert metrics["step"] == 60 and metrics["next_sentence_loss"] > 0


@pytest.mark.slow
def test_a_killed_streamed_run_resumes_bit_identically(streamed):
    straight = pathlib.Path(streamed[-1].removeprefix("--workdir="))
    workdir = straight.parent / "killed"
    arguments = [*streamed[:-1], f"--workdir={workdir}"]
    process = start("bert_jax.train", *arguments)
    while not (workdir / "checkpoints" / "30").is_dir():
        assert process.poll() is None, process.communicate()
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert "resuming at step 30" in run_well("bert_jax.train", *arguments)
    assert_same_bits(workdir, straight, 60)
    path = straight.parent / "1.jsonl"
    path.write_text(path.read_text() + json.dumps({"text": "More."}) + "\n")
    refused = run("bert_jax.train", *arguments)
    assert refused.returncode == 2 and refused.stderr.count("\n") == 1
    assert "1.jsonl was changed" in refused.stderr


def test_the_step_is_compiled_while_the_state_is_made(trained, tmp_path, monkeypatch):
    """The compilation of the phase that the run starts in has started before.

    The compilation cache is opened before, even before the workdir is locked, and a run
    that cannot start records no time.
    """
    events: list[Any] = []
    lock_workdir = resume.lock_workdir

    def lock(*arguments):
        events.append("lock")
        return lock_workdir(*arguments)

    def first_state(*arguments):
        events.append("state")
        raise KeyboardInterrupt

    monkeypatch.setattr(
        CompiledSteps, "start", lambda self, phase: events.append(phase)
    )
    monkeypatch.setattr(train, "Position", first_state)  # of the first state
    monkeypatch.setattr(resume, "lock_workdir", lock)
    monkeypatch.setattr(
        compilation, "enable_cache", lambda *_: events.append("cache") or ""
    )
    config = workdir_lib.read_config(str(trained / "run"))
    assert config is not None
    optimizer = dataclasses.replace(config.optimizer, schedule="wsd", decay_steps=0)
    config = dataclasses.replace(config, budget_hours=1.0, optimizer=optimizer)
    with pytest.raises(KeyboardInterrupt):
        train.train(config, str(tmp_path / "run"))
    assert events == ["cache", "lock", 0, "state"]
