"""Tests of bert_jax.monitoring.trackers, with the real libraries.

They are skipped without requirements-trackers.txt.
"""

import importlib.util
import json
import os
import pathlib
import signal
import subprocess
import sys
import time
from collections.abc import Callable

import numpy as np
import pytest

from bert_jax.errors import ConfigError
from bert_jax.monitoring import trackers, writer
from bert_jax.monitoring.trackers import Trackers
from tests.commands import run, small_run, start, write_text
from tests.runs import lines, step_secs

NAMES = ("wandb", "mlflow", "trackio")
HAS_ALL = all(importlib.util.find_spec(name) for name in NAMES)
needs_trackers = pytest.mark.skipif(
    not HAS_ALL, reason="requirements-trackers.txt is not installed"
)
CANARY = "canary-5f0e71c2"
SECRETS = ("WANDB_API_KEY", "MLFLOW_TRACKING_TOKEN", "HF_TOKEN", "TRACKIO_WRITE_TOKEN")


def stores(directory: pathlib.Path) -> dict[str, str]:
    """Returns variables that make each tracker write to files in a directory."""
    return {
        "WANDB_MODE": "offline",
        "WANDB_DIR": str(directory),
        "WANDB_CACHE_DIR": str(directory / "cache"),
        "MLFLOW_ALLOW_FILE_STORE": "true",
        "MLFLOW_TRACKING_URI": str(directory / "mlruns"),
        "TRACKIO_DIR": str(directory / "trackio"),
    }


# What MLflow's client and Trackio's storage return, as JSON.
READER = """
import json, sys
import trackio
from mlflow.tracking import MlflowClient
from trackio.sqlite_storage import SQLiteStorage

client = MlflowClient()
experiment = client.get_experiment_by_name("bert_jax").experiment_id
(run,) = client.search_runs([experiment])
id = run.info.run_id
rows = [
    {"step": m.step, name: m.value}
    for name in run.data.metrics
    for m in client.get_metric_history(id, name)
]
images = [file.path for file in client.list_artifacts(id)]
config, tags = dict(run.data.params), dict(run.data.tags)
mlflow = [rows, config, tags["checkpoint"], images, run.info.status]

(run,) = trackio.Api().runs("bert_jax")
rows = SQLiteStorage.get_logs("bert_jax", run.name)
last = {name: value for row in rows for name, value in row.items()}
trackio = [rows, run.config, last["checkpoint"], [last["loss_curves"]["_type"]], ""]
print(json.dumps({"mlflow": mlflow, "trackio": trackio}))
"""


def read_stores(directory: pathlib.Path) -> dict[str, list]:
    """Returns rows, config, checkpoint, images and status of the run in each store."""
    env = os.environ | stores(directory)
    code = [sys.executable, "-c", READER]
    text = subprocess.run(code, capture_output=True, check=True, env=env).stdout
    return json.loads(text) | {"wandb": of_wandb(directory)}


def of_wandb(directory: pathlib.Path) -> list:
    """Reads the directories in the order in which `wandb sync` uploads them."""
    rows, config, summary, ids = [], {}, {}, set()
    for path in sorted(directory.glob("wandb/offline-run-*/run-*.wandb")):
        command = [sys.executable, "-m", "wandb", "leet", "inspect", "--json", path]
        text = subprocess.run(command, capture_output=True, check=True).stdout
        records = [json.loads(line) for line in text.splitlines()]
        rows += [r["history"]["item"] for r in records if r["type"] == "history"]
        for record in records:
            config |= record.get("run", {}).get("config", {}).get("update", {})
            summary |= record.get("summary", {}).get("update", {})
        ids.add(path.name)
    assert len(ids) == 1
    status = records[-1]["exit"].get("exit_code", 0)
    image = summary["loss_curves._type"]
    rows = [row | {"step": row["_step"]} for row in rows]
    return [rows, config, summary["checkpoint"], [image], status]


def curve(rows: list[dict], name: str) -> list[tuple[int, float]]:
    return sorted((row["step"], row[name]) for row in rows if name in row)


@needs_trackers
@pytest.mark.slow
def test_a_killed_and_resumed_run_is_one_tracked_run_with_each_step_once(tmp_path):
    text, store = tmp_path / "text", tmp_path / "store"
    text.mkdir(), store.mkdir()
    write_text(text / "documents.txt")
    config = small_run(text, **{"phases[0].num_steps": 120})
    tracked = tmp_path / "tracked"
    arguments = [*config, f"--workdir={tracked}", f"--config.trackers={NAMES}"]
    arguments += ["--config.profile=(12,4)"]
    env = stores(store) | {name: CANARY for name in SECRETS}
    process = start("bert_jax.train", *arguments, **env)
    # The checkpoint of step 30 is complete, and later steps have been logged.
    while not (tracked / "checkpoints/30").exists() or lines(tracked)[-1]["step"] < 50:
        time.sleep(0.005)
        assert process.poll() is None
    process.send_signal(signal.SIGKILL)
    stdout, stderr = process.communicate()
    assert process.returncode == -signal.SIGKILL
    result = run("bert_jax.train", *arguments, **env)
    assert result.returncode == 0, result.stderr
    assert "resuming at step" in result.stdout
    assert "no trace, because step 12 was taken" in result.stdout
    assert CANARY not in stdout + stderr + result.stdout + result.stderr
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert not [path for path in files if CANARY.encode() in path.read_bytes()]

    (trace,) = tracked.glob("plugins/profile/*/*.xplane.pb")
    assert list(step_secs(trace)) == [12, 13, 14, 15]
    found = read_stores(store)
    statuses = {"wandb": 0, "mlflow": "FINISHED", "trackio": ""}
    for name in NAMES:
        rows, config, checkpoint, images, status = found[name]
        for metric in ("loss", "masked_lm_accuracy", "eval_loss", "learning_rate"):
            expected = curve(lines(tracked), metric)
            assert len(expected) == (4 if metric == "eval_loss" else 12)
            steps, values = zip(*curve(rows, metric), strict=True)
            assert list(steps) == [step for step, _ in expected], (name, metric)
            np.testing.assert_allclose(values, [v for _, v in expected], rtol=1e-6)
        assert len(curve(rows, "tokens_per_sec")) == 12
        assert str(config["model.hidden_size"]) == "32"
        assert str(config["phases.0.num_steps"]) == "120"
        assert int(config["run.num_parameters"]) > 20_000
        assert checkpoint == str(tracked / "checkpoints/120")
        assert len(images) == 1
        assert status == statuses[name]


def log(workdir: pathlib.Path, *steps: int) -> None:
    """Appends lines to metrics.jsonl."""
    with open(workdir / "metrics.jsonl", "a") as file:
        for step in steps:
            file.write(json.dumps({"step": step, "loss": 1.0 / step}) + "\n")


# ------------------------------------------------------------ without the libraries

NOT_SENT = (
    "config.trackers: {} did not get all metrics; rerun the same command to send the"
    " rest\n"
)
# A library whose `log` holds the interpreter's lock for ever.
HUNG = """
import ctypes, pathlib, types

Settings = Image = dict

def log(values, step):
    pathlib.Path("{}").touch()
    ctypes.PyDLL(None).sleep(10_000)

def init(**_):
    return types.SimpleNamespace(offline=True, log=log)
"""


def test_a_tracker_that_hangs_delays_only_the_end(tmp_path, monkeypatch, capfd):
    (tmp_path / "wandb.py").write_text(HUNG.format(tmp_path / "hung"))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(trackers, "CLOSE_SECS", 1.0)
    monkeypatch.setattr(trackers, "EXIT_SECS", 0.0)
    opened = Trackers(["wandb"], str(tmp_path), {})
    log(tmp_path, 1)
    wait_for((tmp_path / "hung").exists)
    (process,) = opened._processes.values()
    process.send_signal(signal.SIGSTOP)
    began = time.monotonic()
    monitored = writer.MetricsWriter(str(tmp_path), 1)
    for step in range(2, 2000):  # more than a pipe holds
        monitored.write(step, {"loss": 1.0})
        opened.checkpoint(f"{step}") if step % 100 == 0 else None
    opened.end(is_complete=True)
    assert time.monotonic() - began < 30
    assert process.wait(10) == -signal.SIGKILL
    assert capfd.readouterr().err == NOT_SENT.format("wandb")


def test_a_run_whose_tracker_directory_cannot_be_written_continues(tmp_path, capfd):
    (tmp_path / trackers.DIRECTORY).write_text("a file")
    begun = Trackers(["wandb"], str(tmp_path), {})
    begun.checkpoint("checkpoints/1")
    begun.end(is_complete=True)
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("config.trackers: nothing is sent, because ")


def test_a_tracker_that_is_not_installed_is_an_error(monkeypatch):
    assert trackers.check_installed([]) == ""
    monkeypatch.setattr(sys, "path", [])
    with pytest.raises(ConfigError, match="wandb is not installed; run pip install wa"):
        trackers.check_installed(["wandb"])


def wait_for(is_there: Callable[[], object]) -> None:
    deadline = time.monotonic() + 120
    while not is_there():
        assert time.monotonic() < deadline
        time.sleep(0.02)
