"""The command: from a file or standard input to JSON lines or an .npz."""

import json

import numpy as np

from tests.commands import run_well
from tests.finetuning import tuned
from tests.models import TOKENIZER

LINES = ["w1 w2 ||| w3", "", "W4 nowhere", "w5"]


def test_jsonl_and_npz_have_the_same_token_features(tmp_path):
    directory = tmp_path / "model"
    directory.mkdir()
    tuned.write(directory)
    (directory / "lines.txt").write_text("\n".join(LINES) + "\n")
    command = (f"--model={directory}", f"--input={directory / 'lines.txt'}")
    output = f"--output={tmp_path}/a"
    stdout = run_well("bert_jax.extract", *command, f"{output}.npz")
    assert "4 texts, 15 tokens in" in stdout and "tokens/s" in stdout
    run_well("bert_jax.extract", *command, f"{output}.jsonl", devices=2)
    rows = [json.loads(line) for line in (tmp_path / "a.jsonl").open()]
    assert [row["text"] for row in rows] == LINES
    assert rows[0]["tokens"] == ["[CLS]", "w1", "w2", "[SEP]", "w3", "[SEP]"]
    assert rows[2]["starts"] == [0, 0, 3, 0] and rows[2]["ends"] == [0, 2, 10, 0]
    arrays = np.load(tmp_path / "a.npz")
    assert arrays["lengths"].tolist() == [len(row["tokens"]) for row in rows]
    features = np.concatenate([row["features"] for row in rows])
    np.testing.assert_allclose(arrays["features"], features, atol=2e-6)
    tokens = [TOKENIZER.vocab[i] for i in arrays["tokens"]]
    assert tokens == [token for row in rows for token in row["tokens"]]
    assert arrays["starts"].tolist() == [s for row in rows for s in row["starts"]]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.jsonl", "a.npz", "model"]
