"""The text report has the verdict, facts, estimates and remedy."""

import json
import pathlib
import re

import pytest

from bert_jax.preflight import report as report_lib

RESULTS = pathlib.Path(__file__).parents[2] / "benchmarks" / "results"


@pytest.fixture
def report():
    """Loads a report of base on v4:4x4x4 or another slice, as printed by preflight."""
    first, *_ = (RESULTS / "preflight_base.jsonl").read_text().splitlines()
    return json.loads(first)


def test_a_run_that_fits(report):
    text = report_lib.table(report)
    assert text.count("FITS") == 2 and "DOES NOT FIT" not in text
    assert f"topology: {report['topology']}" in text and "The run fits." in text
    first = report["phases"][0]
    total = first["compiled"]["memory"]["total"] / 2**30
    assert f"{total:,.3f} GiB" in text
    assert f"{first['estimated']['step_seconds'] * 1e3:.2f} ms" in text
    assert "all-reduce" in text and f"MFU {first['estimated']['mfu']:.1%}" in text
    assert "compiled (facts)" in text and "estimated" in text
    assert "cost" not in text  # no price was given
    assert max(map(len, text.splitlines())) <= 100


def test_the_report_of_a_run_that_does_not_fit_names_the_remedy(report):
    phase = report["phases"][0]
    phase["fits"] = report["fits"] = False
    hbm = phase["compiled"]["hbm_bytes"]
    phase["compiled"] = {
        "arguments": phase["compiled"]["arguments"],
        "hbm_bytes": hbm,
        "needed_bytes": 2 * hbm,
    }
    estimated, phase["estimated"] = phase["estimated"], None
    report["remedy"] = {
        "flag": "--config.accumulation_steps=4",
        "phases": [estimated],
    }
    text = report_lib.table(report)
    assert "DOES NOT FIT: needs" in text and "The run fits." not in text
    assert "it fits with --config.accumulation_steps=4" in text
    report["remedy"] = None
    assert "does not fit with any accumulation_steps" in report_lib.table(report)


def test_collectives_of_a_kind_are_one_line(report):
    collective = {"kind": "all-gather", "bytes": 1e6, "devices": 4, "times_a_step": 3}
    report["phases"][0]["compiled"]["collectives"] = [
        collective,
        collective | {"bytes": 2e6, "times_a_step": 1},
        collective | {"devices": 8},
        collective | {"kind": "send", "bytes": 1e3, "devices": 2, "times_a_step": 1},
    ]
    text = report_lib.table(report)
    assert "all-gather                 5.0 MB per step in 4 operations, over 4" in text
    assert "all-gather                 3.0 MB per step in 3 operations, over 8" in text
    assert (
        "send                       1.0 kB per step in 1 operation, to another slice"
        in text
    )


def test_the_parts_of_memory_that_are_shown_add_up_to_the_total(report):
    units = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
    row = re.compile(r"  ([a-z ]+?) +(-?[\d.,]+) (B|KiB|MiB|GiB)\b")
    text = report_lib.table(report)
    facts = text[text.index("compiled (facts)") : text.index("available memory")]
    shown = {
        name: float(number.replace(",", "")) * units[unit]
        for name, number, unit in row.findall(facts)
    }
    assert list(shown)[:4] == ["parameters", "optimizer moments", "batch", "padding"]
    assert shown["aliased"] < 0 < shown["outputs"]
    total = shown.pop("total")
    assert sum(shown.values()) == pytest.approx(total, abs=3e6)  # rounding error
    memory = report["phases"][0]["compiled"]["memory"]
    assert total == pytest.approx(memory["total"], abs=1e6)


def test_small_runs_are_reported_in_small_units(report):
    (phase, _), small = report["phases"], 1e-5
    estimated = phase["estimated"]
    estimated |= {"step_seconds": 12e-6, "hours": 2e-4, "cost": small}
    estimated["seconds"] = dict.fromkeys(estimated["seconds"], 1.5e-6)
    phase["compiled"]["collectives"] = [
        {"kind": "all-reduce", "bytes": 41_820, "devices": 4, "times_a_step": 1}
    ]
    report |= {"hours": 0.39, "cost": 0.0123}
    text = report_lib.table(report)
    assert "all-reduce                41.8 kB per step in 1 operation, over 4" in text
    assert "12.00 us" in text and "1.50 us" in text
    assert "0.72 seconds, cost 0.000010" in text
    assert "Whole schedule: 23.4 minutes, cost 0.012, an estimate" in text
