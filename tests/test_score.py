"""The command: from a file or standard input to JSON lines."""

import json

import pytest

from bert_jax import inference
from tests.commands import run_well

LINES = ["w1 w2 ||| w3", "", "W4 nowhere", "w5 " * 40]


def test_the_output_has_a_line_for_each_text_in_order(directory, tmp_path):
    (directory / "lines.txt").write_text("\n".join(LINES) + "\n")
    arguments = [f"--model={directory}", f"--output={tmp_path / 'scores.jsonl'}"]
    stdout = run_well(
        "bert_jax.score", *arguments, f"--input={directory / 'lines.txt'}"
    )
    rows = [json.loads(line) for line in (tmp_path / "scores.jsonl").open()]
    assert [row["text"] for row in rows] == LINES
    assert [row["num_tokens"] for row in rows] == [6, 0, 2, 30]
    expected = inference.load_masked_lm(directory).score(LINES).values
    for row, score in zip(rows, expected, strict=True):
        assert set(row) == {"text", "score", "num_tokens"}
        assert row["score"] == pytest.approx(score, abs=1e-4)
    assert "4 texts, 1 of them truncated, 38 tokens in" in stdout
    assert {path.name for path in tmp_path.iterdir()} == {"scores.jsonl", "source"}
