"""Benchmarks run and print rows; their numbers are not judged here."""

import json

import pytest

from tests.commands import run_well, write_text

ROW = {"benchmark", "case", "value", "unit", "peer", "peer_value", "ratio", "spread"}


@pytest.mark.slow
def test_train_step_prints_a_row():
    stdout = run_well(
        "benchmarks.train_step", "--batch=2", "--length=16", "--repeats=2", "--peer=0"
    )
    row = json.loads(stdout)
    assert row.keys() >= ROW and row["value"] > 0 and row["mfu"] > 0


@pytest.mark.slow
def test_input_pipeline_prints_a_row():
    stdout = run_well("benchmarks.input_pipeline", "--seconds=0.5", "--repeats=2")
    row = json.loads(stdout)
    assert row.keys() >= ROW and row["value"] > 0
    assert row["versions"]["jax"]


@pytest.mark.slow
def test_tokenize_prints_a_row_for_each_text(tmp_path):
    arguments = ["--megabytes=0.1", "--repeats=2"]
    stdout = run_well("benchmarks.tokenize", *arguments)
    english, chinese = map(json.loads, stdout.splitlines())
    assert english.keys() >= ROW and english["ratio"] > 0 and chinese["ratio"] > 0
    write_text(tmp_path / "a.txt")
    stdout = run_well("benchmarks.tokenize", *arguments, f"--text={tmp_path}/*.txt")
    assert json.loads(stdout)["megabytes"] > 0
