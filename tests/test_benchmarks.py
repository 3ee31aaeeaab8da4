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
    assert row.keys() >= ROW and row["value"] > 0 and row["mfu"] is None


@pytest.mark.slow
def test_input_pipeline_prints_a_row_for_each_case():
    """Also the bound on memory, which holds anywhere."""
    stdout = run_well(
        "benchmarks.input_pipeline", "--seconds=0.5", "--repeats=2", "--megabytes=20"
    )
    found = [json.loads(line) for line in stdout.splitlines()]
    *rates, first_batch = found
    assert {row["case"].rpartition(",")[0] for row in rates} == {
        "128",
        "128 whole words",
        "512 packed",
        "512 packed whole words",
    }
    for row in rates:
        assert row.keys() >= ROW and row["value"] > 0
        assert row["versions"]["jax"]
        assert row["peak_memory_bytes"] < 2 * 10**9
    assert "plain Python" in rates[0]["peer"] and rates[0]["ratio"] > 0
    assert rates[-1]["text_share"] > 0.95
    assert first_batch["unit"] == "s" and first_batch["value"] > 0


@pytest.mark.slow
def test_tokenize_prints_a_row_for_each_text(tmp_path):
    arguments = ["--megabytes=0.1", "--repeats=2"]
    stdout = run_well("benchmarks.tokenize", *arguments)
    english, chinese = map(json.loads, stdout.splitlines())
    assert english.keys() >= ROW and english["ratio"] > 0 and chinese["ratio"] > 0
    write_text(tmp_path / "a.txt")
    stdout = run_well(
        "benchmarks.tokenize", *arguments, f"--source=text:{tmp_path}/*.txt"
    )
    assert json.loads(stdout)["megabytes"] > 0


@pytest.mark.slow
def test_checkpoint_prints_a_row_for_each_cost():
    stdout = run_well("benchmarks.checkpoint", "--batch=1", "--steps=2", "--repeats=1")
    found = [json.loads(line) for line in stdout.splitlines()]
    assert all(row.keys() >= ROW and row["value"] > 0 for row in found)
    blocked, digests, verify, steps = found
    assert blocked["ratio"] < 1  # the rest is written while steps go on
    assert (digests["unit"], verify["unit"], steps["unit"]) == ("s", "s", "steps/s")
