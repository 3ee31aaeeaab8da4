"""The command: from a file or standard input to JSON lines or an .npz."""

import json

import numpy as np
import pytest

from bert_jax.interop import huggingface_write
from tests.commands import run_well
from tests.finetuning import tuned
from tests.models import TOKENIZER

LINES = ["w1 w2 ||| w3", "", "W4 nowhere", "w5"]


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    path = tmp_path_factory.mktemp("model")
    config, _, params = tuned.build("classification")
    head = tuned.HEADS["classification"]
    huggingface_write.write_model(path, params, config, head, TOKENIZER, 32)
    (path / "lines.txt").write_text("\n".join(LINES) + "\n")
    return path


def command(directory, output, /, **flags):
    flags = {
        "model": directory,
        "output": output,
        "input": directory / "lines.txt",
    } | flags
    return [*(f"--{name}={value}" for name, value in flags.items())]


def test_jsonl_and_npz_have_the_same_token_features(directory, tmp_path):
    stdout = run_well("bert_jax.extract", *command(directory, tmp_path / "a.npz"))
    assert "4 texts, 15 tokens in" in stdout and "tokens/s" in stdout
    run_well("bert_jax.extract", *command(directory, tmp_path / "a.jsonl"), devices=2)
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
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.jsonl", "a.npz"]
