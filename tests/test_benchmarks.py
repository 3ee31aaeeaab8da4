"""Benchmarks run and print rows; their numbers are not judged here."""

import json

import pytest

from tests.commands import run_well

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
