"""Tests of benchmarks.speedrun and the rules of its tracks."""

import dataclasses
import json
import os

import pytest

from benchmarks import speedrun as command
from benchmarks import speedrun_tracks
from bert_jax import config as config_lib
from bert_jax.configs import base_modern, tiny
from bert_jax.errors import ConfigError
from tests.commands import ROOT, run_anew, small_run, write_text

CPU = speedrun_tracks.TRACKS["cpu"]


def changed(key, value):
    config = tiny.get_config()
    config.update_from_flattened_dict({key: value})
    return config_lib.from_config_dict(config)


@pytest.mark.parametrize(
    "key, value",
    [
        ("optimizer.learning_rate", 1e-3),
        ("data.masked_lm_prob", 0.3),
        ("data.corpus_dir", "elsewhere"),
        ("eval.every_steps", 7),
        ("model.num_hidden_layers", 4),
        ("seed", 1),
    ],
)
def test_an_entry_may_change_the_recipe(key, value):
    speedrun_tracks.check_rules(changed(key, value), CPU)


@pytest.mark.parametrize(
    "key, value, message",
    [
        ("tokenizer.vocab_size", 400, "use 4000, as in bert_jax.configs.tiny"),
        ("data.validation_fraction", 0.5, "is fixed in this track; use 0.05"),
        ("data.sources", ("text:a",), "config.data.sources=('text:a',) is fixed"),
        ("data.next_sentence", False, "config.data.next_sentence=False is fixed"),
        ("eval.masked_lm_prob", 0.05, "config.eval.masked_lm_prob=0.05 is fixed"),
        ("init_from", "runs/a", "config.init_from='runs/a': use ''"),
        ("branch_from", "runs/a@5", "config.branch_from='runs/a@5': use ''"),
    ],
)
def test_an_entry_keeps_the_text_and_the_evaluation(key, value, message):
    with pytest.raises(ConfigError) as caught:
        speedrun_tracks.check_rules(changed(key, value), CPU)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "key, value", [("sequence_length", 32), ("max_predictions", 9)]
)
def test_the_last_phase_has_the_rows_of_the_evaluation(key, value):
    config = changed("seed", 0)
    last = dataclasses.replace(config.phases[-1], **{key: value})
    config = dataclasses.replace(config, phases=(config.phases[0], last))
    with pytest.raises(ConfigError, match=f"{key}={value}.* with 64 and at least 10"):
        speedrun_tracks.check_rules(config, CPU)


def test_the_modern_recipe_enters_the_gpu_track_with_longer_rows_last():
    """Its phases are of 128 and 512 tokens; an entry needs 128 in the last one."""
    config = config_lib.from_config_dict(base_modern.get_config())
    gpu = speedrun_tracks.TRACKS["gpu"]
    with pytest.raises(ConfigError, match="sequence_length=512"):
        speedrun_tracks.check_rules(config, gpu)
    short = dataclasses.replace(config, phases=config.phases[:1])
    speedrun_tracks.check_rules(short, gpu)


PROGRAM = """
import runpy, sys
from benchmarks import speedrun_tracks
speedrun_tracks.TRACKS["cpu"] = speedrun_tracks.Track("small", {nats}, 32, 20)
runpy.run_module("benchmarks.speedrun", run_name="__main__")
"""


def speedrun(directory, nats, *arguments):
    """Runs the benchmark in a track whose target is `nats` below the entropy."""
    (directory / "enter.py").write_text(PROGRAM.format(nats=nats))
    given = [
        *(f"--config={directory / 'small.py'}", f"--workdir={directory / 'work'}"),
        f"--logs={directory / 'logs'}",
    ]
    path = os.pathsep.join([str(ROOT), str(directory)])
    return run_anew("enter", *given, *arguments, PYTHONPATH=path)


@pytest.fixture
def small(tmp_path):
    """Returns a directory with text and the config of a small run on it."""
    write_text(tmp_path / "a.txt")
    flags = [x.removeprefix("--config.") for x in small_run(tmp_path)[1:]]
    text = [
        "from tests import one_phase",
        "def get_config():",
        "    config = one_phase.get_config()",
    ]
    for flag in flags:
        key, _, value = flag.partition("=")
        quoted = repr(value) if key == "data.corpus_dir" else value
        text.append(f"    config.{key} = {quoted}")
    (tmp_path / "small.py").write_text("\n".join([*text, "    return config", ""]))
    return tmp_path


@pytest.mark.slow
def test_a_run_ends_at_the_target_and_its_row_is_verified(small):
    arguments = ("--change=a change", "--seeds=1")
    result = speedrun(small, -0.3, *arguments)  # reached within 60 steps
    assert result.returncode == 0, result.stderr
    row = json.loads(result.stdout)
    assert row["case"] == "a change" and row["repeats"] == 1 and row["value"] > 0
    assert row["masked_lm_loss"] <= row["target"] + 5e-4
    assert row["unigram_entropy"] == pytest.approx(row["target"] - 0.3, abs=2e-3)
    assert row["steps"] % 20 == 0 and row["steps"] <= 60
    log = (small / "logs" / row["log"]).read_text().splitlines()
    assert log[0] == "a change" and json.loads(log[1])["seed"] == 12345
    assert json.loads(log[2])["masked_lm_loss"] <= row["target"] + 5e-4
    assert f"masked LM {json.loads(log[2])['masked_lm_loss']:.4f}" in log[-1]

    # The results of the seed are read; only another one would be trained.
    again = speedrun(small, -0.3, *arguments)
    assert json.loads(again.stdout) == row and "held out" not in again.stderr


@pytest.mark.slow
def test_a_run_that_ends_above_the_target_is_an_error(small):
    steps = "--config.phases[0].num_steps=20"
    result = speedrun(small, 5.0, "--change=a change", "--seeds=2", steps)
    assert result.returncode == 2 and not result.stdout
    assert "above the target" in result.stderr.splitlines()[-1]


def test_a_change_must_be_named(small):
    result = speedrun(small, 0)
    assert result.returncode == 2 and "--change is missing" in result.stderr


def test_two_entries_of_one_config_and_day_have_two_logs():
    first, second = (command.log_name("cpu", "tiny", x) for x in ("Rate 3e-3", "a/b"))
    assert first.endswith("_cpu_tiny_rate-3e-3.log")
    assert second.endswith("_cpu_tiny_a-b.log")
