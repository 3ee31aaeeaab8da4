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


def test_an_entry_may_change_the_recipe_but_not_the_rows_of_the_last_phase():
    """Those of the modern recipe are of 128 and 512 tokens; the track has 128."""
    config = config_lib.from_config_dict(base_modern.get_config())
    gpu = speedrun_tracks.TRACKS["gpu"]
    with pytest.raises(ConfigError, match="sequence_length=512"):
        speedrun_tracks.check_rules(config, gpu)
    short = dataclasses.replace(config, phases=config.phases[:1])
    speedrun_tracks.check_rules(short, gpu)


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


# A track whose target is above the entropy, which a run reaches within 60 steps.
PROGRAM = """
import runpy, sys
from benchmarks import speedrun_tracks
speedrun_tracks.TRACKS["cpu"] = speedrun_tracks.Track("small", -0.3, 32, 20)
runpy.run_module("benchmarks.speedrun", run_name="__main__")
"""


@pytest.mark.slow
def test_a_run_ends_at_the_target_and_its_row_is_verified(small):
    (small / "enter.py").write_text(PROGRAM)
    result = run_anew(
        *("enter", f"--config={small / 'small.py'}", f"--workdir={small / 'work'}"),
        *(f"--logs={small / 'logs'}", "--change=a change", "--seeds=1"),
        PYTHONPATH=os.pathsep.join([str(ROOT), str(small)]),
    )
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


def test_two_entries_of_one_config_and_day_have_two_logs():
    first, second = (command.log_name("cpu", "tiny", x) for x in ("Rate 3e-3", "a/b"))
    assert first.endswith("_cpu_tiny_rate-3e-3.log")
    assert second.endswith("_cpu_tiny_a-b.log")
