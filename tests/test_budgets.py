"""Tests of the table of training budgets."""

import json

import pytest

from benchmarks import budgets, report
from bert_jax.configs import base_modern


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
    run = {"benchmark": "train", "case": "base", "value": 4_000.0, "seconds": 480}
    run |= {"masked_lm_loss_of_the_last_steps": 2.5}
    (directory / "gpu_h200.jsonl").write_text(text + json.dumps(row | run) + "\n")


def test_time_and_cost_follow_from_the_measured_rates(tmp_path, monkeypatch):
    rates = {"8x128": 2_000.0, "512x128": 4_000.0, "128x512": 500.0}
    write_rates(tmp_path, monkeypatch, rates)
    laptop, minutes, day = lines()
    assert laptop["status"] == "measured" and laptop["cost"] == ""
    assert minutes["status"] == day["status"] == "**planned**"
    assert minutes["steps take"] == "20 min" and minutes["cost"] == "$1.33"
    assert "2.50 nats after 8 minutes (measured)" in minutes["expected result"]
    assert minutes["tokens"] == f"{1_200 * 4_000 * 128 / 1e6:,.0f} M"
    first, second = base_modern.get_config().phases
    hours = first.num_steps * first.global_batch_size / 4_000 / 3_600
    hours += second.num_steps * second.global_batch_size / 500 / 3_600
    assert day["steps take"] == f"{hours:.1f} h"
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
    assert float(day["steps take"].removesuffix(" h")) < 24


def test_a_length_without_a_rate_is_an_error(tmp_path, monkeypatch):
    write_rates(tmp_path, monkeypatch, {"512x128": 4_000.0})
    with pytest.raises(ValueError):
        budgets.budgets()
