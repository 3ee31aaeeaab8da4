"""Tests of benchmarks.report."""

import json
import xml.etree.ElementTree as ElementTree

import pytest

from benchmarks import report
from bert_jax.errors import ConfigError

ROW = {
    "benchmark": "train_step",
    "case": "base 8x128 float32",
    "value": 3.0,
    "unit": "sequences/s",
    "peer": "a peer",
    "peer_value": 1.5,
    "ratio": 2.0,
    "spread": 0.1,
    "repeats": 5,
    "cpu_count": 2,
    "versions": {"python": "3.11.7", "jax": "0.10.2"},
}


@pytest.fixture
def results(tmp_path, monkeypatch):
    """Returns a function that writes a file of rows."""
    monkeypatch.setattr(report, "RESULTS", tmp_path)

    def write(name, *rows):
        lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines) + "\n")

    return write


def fill(marker):
    """Returns a page with one marker, filled."""
    generators = {"results": report.results} | report.CHARTS
    return report.fill(
        f"# Page\n\n<!-- begin: {marker} -->\n<!-- end -->\n", generators
    )


def test_a_filled_page_is_filled_to_the_same_text(results):
    results("a", ROW)
    text = fill("results a train_step")
    assert "| base 8x128 float32 |" in text and text.startswith("# Page\n\n<!-- begin")
    assert report.fill(text, {"results": report.results}) == text


@pytest.mark.parametrize(
    "row, reason",
    [
        ("{", "not JSON"),
        ("[1]", "not a JSON object"),
        ({**ROW, "value": "3"}, "value='3' is not a number"),
        ({k: v for k, v in ROW.items() if k != "unit"}, "no key 'unit'"),
        ({**ROW, "versions": None}, "NoneType"),
        ({**ROW, "benchmark": "tuning"}, "no key 'floor_of'"),
        ({"topology": "v5e:2x2", "devices": 4}, "no key 'phases'"),
    ],
)
def test_a_malformed_row_is_an_error_with_its_file_and_number(results, row, reason):
    results("a", ROW, row)
    with pytest.raises(ConfigError) as error:
        report.results("a")
    assert "/a.jsonl:2: " in str(error.value) and reason in str(error.value)


@pytest.mark.parametrize(
    "marker, reason",
    [
        ("resulte a", "'resulte' is not one of "),
        ("results", "missing a required argument: 'name'"),
        ("loss_curves a b", "too many positional arguments"),
        ("results a other", "no row for 'a other'"),
        ("loss_curves a", "has no row for 'a loss_curve'"),
    ],
)
def test_a_marker_that_cannot_be_replaced_is_an_error(results, marker, reason):
    results("a", ROW)
    with pytest.raises(ConfigError) as error:
        fill(marker)
    assert reason in str(error.value)


def test_a_device_and_versions_are_columns_if_they_differ(results):
    results("a", ROW, {**ROW, "benchmark": "x", "device": "H200", "mfu": 0.305})
    assert report.results("a", "train_step").endswith(
        "\n\n2 CPU cores; Python 3.11.7, jax 0.10.2."
    )
    assert "MFU" not in report.results("a", "train_step")
    both = report.results("a")
    assert "| device |" in both and "| H200 |" in both and "| 30.5% |" in both


def test_a_chart_of_losses_is_well_formed_and_the_same_each_time(results):
    curve = {
        "steps": [10, 20],
        "masked_lm_loss": [6.0, 5.5],
        "next_sentence_accuracy": [0.5, 0.6],
    }
    row = {
        **ROW,
        "benchmark": "loss_curve",
        "case": "packed",
        "step_seconds": 0.5,
        "pairs": 14.0,
        "text_share": 0.96,
        "next_sentence_majority": 0.55,
        "curves": [curve, {**curve, "masked_lm_loss": [6.0, 5.4]}],
    }
    results("a", row)
    chart = report.loss_curves("a")
    assert chart == report.loss_curves("a")
    image = ElementTree.fromstring(chart)
    assert image.get("aria-label") == "Held-out loss over time, a"
    texts = "".join(image.itertext())
    assert "held-out masked-LM loss, nats" in texts
    assert texts.count("packed") == 1  # one label for the lines of both seeds
    assert chart.count("stroke: #1f77b4") >= 2
    assert "5.500, 5.400" in report.results("a")


def test_a_comparison_of_fine_tuning_shows_the_score_of_every_seed(results):
    row = {**ROW, "benchmark": "tuning_parity", "unit": "f1", "rate": 3e-4}
    row |= {"scores": [0.5, 0.75, 0.7], "peer_scores": [0.6, 0.7, 0.8]}
    results("a", row | {"floor": 0.25, "floor_of": "chance"})
    table = report.results("a")
    assert "| 0.650 (0.500, 0.750, 0.700) | 0.700 (0.600, 0.700, 0.800) |" in table
    assert "| 0.25 (chance) |" in table


def test_a_number_has_three_digits_and_all_before_the_point(results):
    values = {0.12345: "0.123", 99.96: "100", 123.4: "123", 1234.5: "1,234", 7: "7"}
    for value, text in values.items():
        results("a", ROW | {"value": value, "peer_value": None, "ratio": None})
        assert f"| {text} sequences/s | a peer |" in report.results("a")
