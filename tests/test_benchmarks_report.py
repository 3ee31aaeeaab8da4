"""Tests of benchmarks.report and benchmarks.charts."""

import json
import xml.etree.ElementTree as ElementTree

import pytest

from benchmarks import charts, report
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
        ({**ROW, "ratio": "2"}, "str"),
        ({k: v for k, v in ROW.items() if k != "unit"}, "no key 'unit'"),
        ({**ROW, "versions": None}, "NoneType"),
        ({**ROW, "case": 8}, "case=8 is not text"),
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
        ("pears a", "'pears' is not one of "),
        ("peers", "missing a required argument: 'name'"),
        ("share_of_peak a b", "too many positional arguments"),
        ("results a other", "no row for 'a other'"),
        ("share_of_peak a", "a.jsonl: the chart 'Share of peak': 'case 1' is not SIZE"),
        ("peers a new", "a.jsonl: the chart 'Rates relative to peers' has no rows"),
        ("step_classes a", "has no row for 'a tpu_schedule gpu_profile'"),
    ],
)
def test_a_marker_that_cannot_be_replaced_is_an_error(results, marker, reason):
    without_peer = {"peer": None, "peer_value": None, "ratio": None}
    new = {**ROW, **without_peer, "benchmark": "new"}
    results("a", {**ROW, "case": "case 1", "mfu": 0.3}, new)
    with pytest.raises(ConfigError) as error:
        fill(marker)
    assert reason in str(error.value)


def test_rows_of_other_kinds_are_in_the_table_but_not_in_the_chart_of_peers(results):
    tuning = {**ROW, "benchmark": "tuning", "floor": 0.5, "floor_of": "", "rate": 1e-3}
    tuning |= {"peer_rate": 3e-3, "case": "a task"}
    del tuning["ratio"]
    results("a", ROW, tuning)
    table = report.results("a")
    assert "| base 8x128 float32 |" in table and "| a task |" in table
    chart = report.peers("a")
    assert "against a peer" in chart and "a task" not in chart


def test_a_device_and_versions_are_columns_if_they_differ(results):
    results("a", ROW, {**ROW, "benchmark": "x", "device": "H200", "mfu": 0.305})
    assert report.results("a", "train_step").endswith(
        "\n\n2 CPU cores; Python 3.11.7, jax 0.10.2."
    )
    assert "MFU" not in report.results("a", "train_step")
    both = report.results("a")
    assert "| device |" in both and "| H200 |" in both and "| 30.5% |" in both


def test_bars_have_the_lengths_of_the_ratios():
    slow = ROW | {"benchmark": "new", "ratio": 0.5}
    (axes,) = charts.peers([ROW, slow]).axes
    ends = [(bar.get_x(), bar.get_x() + bar.get_width()) for bar in axes.patches]
    assert ends == [(1, 2.0), (1, 0.5)]
    labels = [text.get_text() for text in axes.get_yticklabels()]
    assert labels[0] == "base 8x128 float32\nagainst a peer"


def test_shares_of_peak_are_lines_over_the_batch_size():
    rows = [
        {"case": f"{size} {batch}x128 bfloat16", "mfu": mfu}
        for size, batch, mfu in [
            ("base", 512, 0.3),
            ("base", 256, 0.2),
            ("base", 512, 0.29),  # the better of two rows of a batch size is shown
            ("large", 64, 0.4),
        ]
    ]
    (axes,) = charts.share_of_peak(rows).axes
    base, large = axes.lines
    assert base.get_label() == "base, 128 tokens, bfloat16"
    assert base.get_xydata().tolist() == [[256, 20], [512, 30]]
    assert large.get_xydata().tolist() == [[64, 40]]


def test_loss_curves_are_lines_over_seconds(results):
    curve = {
        "steps": [10, 20],
        "masked_lm_loss": [6.0, 5.5],
        "next_sentence_accuracy": [0.5, 0.6],
        "probe/blimp": [52.5],
    }
    row = {
        **ROW,
        "benchmark": "loss_curve",
        "case": "packed",
        "step_seconds": 0.5,
        "pairs": 14.0,
        "text_share": 0.96,
        "next_sentence_majority": 0.55,
        "common_seconds": 8.0,
        "losses_at_common": [5.7, 5.6],
        "curves": [curve, {**curve, "masked_lm_loss": [6.0, 5.4]}],
    }
    (axes,) = charts.loss_curves([row]).axes
    first, second = axes.lines
    assert first.get_label() == "packed" and second.get_label().startswith("_")
    assert first.get_xydata().tolist() == [[5, 6], [10, 5.5]]
    assert second.get_xydata().tolist() == [[5, 6], [10, 5.4]]
    results("a", row)
    assert "held-out masked-LM loss, nats" in report.loss_curves("a")
    table = report.results("a")
    assert "5.500, 5.400" in table and "5.700, 5.600 after 8 s" in table
    assert "| BLiMP accuracy |" in table and "| 52.5, 52.5 |" in table


def test_classes_of_a_step_add_up():
    cases = {"a": {"matmul": 1.0, "dropout": 3.0}, "b": {"matmul": 2.0, "new": 2.0}}
    (axes,) = charts.step_classes(cases).axes
    ends = {(bar.get_y(), bar.get_x() + bar.get_width()) for bar in axes.patches}
    a, b = sorted({y for y, _ in ends})
    assert {(a, 25), (a, 100), (b, 50), (b, 100)} <= ends


def test_the_chart_of_a_step_has_the_chip_and_the_classes_of_its_schedule(results):
    classes = {"matmul": {"larger_of": 3.0}, "dropout": {"larger_of": 1.0}}
    row = {"benchmark": "tpu_schedule", "case": "base 64x128", "topology": "v5e:2x2"}
    row |= {"value": 5, "larger_of": 4, "ideal": 2, "share_of_peak": 0.4}
    results("a", row | {"classes": classes, "memory_bytes": 1, "versions": {}})
    chart = report.step_classes("a")
    assert "v5e, base 64x128" in chart and "75%" in chart and "dropout" in chart


def test_the_chart_of_a_step_has_the_kernels_of_a_profile(results):
    row = {"benchmark": "gpu_profile", "case": "base 512x128", "device": "H200"}
    classes = {"products": 3, "attention": 1}
    results("a", row | {"value": 4, "unit": "us", "classes": classes, "versions": {}})
    chart = report.step_classes("a")
    assert "H200, base 512x128" in chart and "75%" in chart and "attention" in chart


def test_charts_are_well_formed_and_the_same_each_time():
    first, second = (charts.svg(charts.peers([ROW]), 'a "b" & c') for _ in range(2))
    assert first == second
    image = ElementTree.fromstring(first)
    assert image.get("aria-label") == 'a "b" & c'
    assert "against a peer" in "".join(image.itertext())


def test_a_comparison_of_fine_tuning_shows_the_score_of_every_seed(results):
    row = {**ROW, "benchmark": "tuning_parity", "unit": "f1", "rate": 3e-4}
    row |= {"scores": [0.5, 0.75, 0.7], "peer_scores": [0.6, 0.7, 0.8]}
    results("a", row | {"floor": 0.25, "floor_of": "chance"})
    table = report.results("a")
    assert "| 0.650 (0.500, 0.750, 0.700) | 0.700 (0.600, 0.700, 0.800) |" in table
    assert "| 0.25 (chance) |" in table and "| a peer |" in table
