"""The table says what fits, what was compiled, what is estimated and what to do."""

import json
import pathlib

import pytest

from bert_jax import preflight_report

RESULTS = pathlib.Path(__file__).parent.parent / "benchmarks" / "results"


@pytest.fixture
def report():
    """Of base on v4:4x4x4 or another slice, as preflight printed it."""
    first, *_ = (RESULTS / "preflight_base.jsonl").read_text().splitlines()
    return json.loads(first)


def test_a_run_that_fits(report):
    text = preflight_report.table(report)
    assert text.count("FITS") == 2 and "DOES NOT FIT" not in text
    assert f"topology: {report['topology']}" in text and "It fits." in text
    first = report["phases"][0]
    total = first["compiled"]["memory"]["total"] / 2**30
    assert f"{total:,.3f} GiB" in text
    assert f"{first['estimated']['step_seconds'] * 1e3:.2f} ms" in text
    assert "all-reduce" in text and f"MFU {first['estimated']['mfu']:.1%}" in text
    assert "compiled (facts)" in text and "estimated" in text
    assert "cost" not in text  # no price was given
    assert max(map(len, text.splitlines())) <= 100


def test_a_run_that_does_not_fit_is_told_what_would(report):
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
    text = preflight_report.table(report)
    assert "DOES NOT FIT: needs" in text and "It fits." not in text
    assert "it does with --config.accumulation_steps=4" in text
    report["remedy"] = None
    assert "no accumulation_steps makes it fit" in preflight_report.table(report)


def test_collectives_of_a_kind_are_one_line(report):
    collective = {"kind": "all-gather", "bytes": 1e6, "devices": 4, "times_a_step": 3}
    report["phases"][0]["compiled"]["collectives"] = [
        collective,
        collective | {"bytes": 2e6, "times_a_step": 1},
        collective | {"devices": 8},
        collective | {"kind": "send", "devices": 2, "times_a_step": 1},
    ]
    text = preflight_report.table(report)
    assert "all-gather                 5.0 MB a step, 4 times, over 4 devices" in text
    assert "all-gather                 3.0 MB a step, 3 times, over 8 devices" in text
    assert "send                       1.0 MB a step, 1 times, to another slice" in text
