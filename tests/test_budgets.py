"""Tests of the table of training budgets."""

import json

import pytest

from benchmarks import budgets, report
from bert_jax.configs import base_modern, gpu


def lines():
    head, _, *rows = budgets.budgets().splitlines()
    names = [cell.strip() for cell in head.strip("|").split("|")]
    return [
        dict(zip(names, (x.strip() for x in row.strip("|").split("|")), strict=True))
        for row in rows
    ]


def write_rates(directory, monkeypatch, rates):
    """Writes train_step rows with these sequences/s by batch and length."""
    monkeypatch.setattr(report, "RESULTS", directory)
    row = {"benchmark": "train_step", "unit": "sequences/s", "peer": None}
    row |= {"peer_value": None, "ratio": None, "spread": 0.0, "repeats": 1}
    row |= {"cpu_count": 16, "versions": {}}
    text = "".join(
        json.dumps(row | {"case": f"base {case} bfloat16", "value": value}) + "\n"
        for case, value in rates.items()
    )
    (directory / "gpu_h200.jsonl").write_text(text)


def write_run(directory):
    """Writes the rows of a run of configs/gpu.py with 1,000 steps."""
    row = {"benchmark": "pretraining", "case": "gpu", "value": 3.0, "peer_value": 6.25}
    row |= {"next_sentence_accuracy": 0.9, "cpu_count": 16, "versions": {}}
    last = {"step": 1_000, "seconds": 90.0, "tokens": 1, "flops": 1.0}
    last |= {"masked_lm_loss": 3.0, "next_sentence_accuracy": 0.9}
    row["evaluations"] = [last]
    blimp = {"benchmark": "blimp", "case": "gpu", "value": 66.6, "unit": "%"}
    blimp |= {"peer": None, "peer_value": None, "ratio": None, "spread": 0.0}
    blimp |= {"repeats": 1, "cpu_count": 2, "versions": {}}
    text = json.dumps(row) + "\n" + json.dumps(blimp) + "\n"
    (directory / "gpu_run.jsonl").write_text(text)


def test_time_and_cost_follow_from_measurements(tmp_path, monkeypatch):
    rates = {"8x128": 2_000.0, "512x128": 4_000.0, "128x512": 500.0}
    write_rates(tmp_path, monkeypatch, rates)
    write_run(tmp_path)
    laptop, minutes, day = lines()
    assert laptop["status"] == minutes["status"] == "measured"
    assert laptop["cost"] == "" and minutes["cost"] == "$0.10"  # of 90 s
    assert minutes["budget"] == "one H200, 1.5 minutes" and minutes["time"] == "2 min"
    (phase,) = gpu.get_config().phases
    tokens = 1_000 * phase.global_batch_size * phase.sequence_length
    assert minutes["tokens"] == f"{tokens / 1e6:,.0f} M"
    assert "3.00 nats held out, 3.2 below" in minutes["expected result"]
    assert "BLiMP 66.6%" in minutes["expected result"]
    assert day["status"] == "**planned**"
    first, second = base_modern.get_config().phases
    hours = first.num_steps * first.global_batch_size / 4_000 / 3_600
    hours += second.num_steps * second.global_batch_size / 500 / 3_600
    assert day["time"] == f"{hours:.1f} h"
    assert day["cost"] == f"${hours * budgets.DOLLARS_PER_GPU_HOUR:,.2f}"


def test_rates_are_rows_per_second_with_dropout(tmp_path, monkeypatch):
    rates = {"64x512": 500.0, "64x512 packed": 1_100.0, "32x512": 400.0}
    write_rates(tmp_path, monkeypatch, rates)
    path = tmp_path / "gpu_h200.jsonl"
    row = json.loads(path.read_text().splitlines()[0])
    for case in ("base 64x512 bfloat16, no dropout", "base 64x512 bfloat16, a peer"):
        more = json.dumps(row | {"case": case, "value": 9_000.0})
        path.write_text(f"{path.read_text()}{more}\n")
    assert budgets.gpu_rate(512) == 550


def test_the_measured_day_fits_in_a_day():
    *_, day = lines()
    assert float(day["time"].removesuffix(" h")) < 24


def test_a_length_without_a_rate_is_an_error(tmp_path, monkeypatch):
    write_rates(tmp_path, monkeypatch, {"512x128": 4_000.0})
    write_run(tmp_path)
    with pytest.raises(ValueError):
        budgets.budgets()
