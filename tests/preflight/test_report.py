"""The text report has the verdict, facts, estimates and remedy."""

import json
import pathlib

import pytest

from bert_jax.preflight import __main__ as report_lib

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
    assert f"{total:,.2f} GiB" in text
    assert f"{first['estimated']['step_seconds'] * 1e3:.2f} ms" in text
    assert "all-reduce" in text and f"MFU {first['estimated']['mfu']:.1%}" in text
    assert "compiled program" in text and "estimated" in text
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
    report["remedy"] = {"flag": "--config.accumulation_steps=4", "phases": [estimated]}
    text = report_lib.table(report)
    assert (
        "DOES NOT FIT: the program needs 61.50 GiB" in text
        and "The run fits." not in text
    )
    assert "it fits with --config.accumulation_steps=4" in text
    report["remedy"] = None
    assert "does not fit with any accumulation_steps" in report_lib.table(report)


def test_the_kinds_of_remat_have_a_line_each(report):
    phase = report["phases"][0]
    found = {"fits": True, "total_bytes": 2**30, "estimated": phase["estimated"]}
    other = {"fits": False, "total_bytes": 2**35, "estimated": None}
    other["accumulation_steps"] = found["accumulation_steps"] = 8
    phase["remat"] = [found | {"remat": "full"}, other | {"remat": "none"}]
    lines = report_lib.table(report).splitlines()
    (line,) = [line for line in lines if "remat full" in line]
    assert "1.00 GiB" in line and f"MFU {phase['estimated']['mfu']:.1%}" in line
    row = f"  {'remat none':<20}    32.00 GiB, DOES NOT FIT, accumulation_steps 8"
    assert row in lines
