"""The command: from a file or standard input to JSON lines or an .npz."""

import json

import numpy as np
import pytest

from bert_jax import extract
from bert_jax.config import ConfigError
from bert_jax.interop import huggingface
from tests.commands import run, run_well
from tests.models import TOKENIZER
from tests.tasks import tuned

LINES = ["w1 w2 ||| w3", "", "W4 nowhere", "w5"]


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    path = tmp_path_factory.mktemp("model")
    config, _, params = tuned.build("classification")
    head = tuned.HEADS["classification"]
    huggingface.write_tuned(path, params, config, head, TOKENIZER, 32)
    (path / "lines.txt").write_text("\n".join(LINES) + "\n")
    return path


def command(directory, output, **flags):
    flags = {"input": directory / "lines.txt"} | flags
    return [
        f"--model={directory}",
        f"--output={output}",
        *(f"--{name}={value}" for name, value in flags.items()),
    ]


def test_both_files_say_the_same_of_tokens(directory, tmp_path):
    stdout = run_well("bert_jax.extract", *command(directory, tmp_path / "a.npz"))
    assert "4 texts, 16 tokens in" in stdout and "tokens/s" in stdout
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


def test_pooled(directory, tmp_path):
    flags = {"pooling": "mean", "layers": "sum_all", "max_length": 8}
    run_well("bert_jax.extract", *command(directory, tmp_path / "a.npz", **flags))
    assert np.load(tmp_path / "a.npz")["features"].shape == (4, 32)
    run_well("bert_jax.extract", *command(directory, tmp_path / "a.jsonl", **flags))
    (row, *_) = [json.loads(line) for line in (tmp_path / "a.jsonl").open()]
    assert set(row) == {"text", "features"} and len(row["features"]) == 32


def test_nothing_is_left_of_what_failed(tmp_path):
    for name in ("a.jsonl", "a.npz"):
        with pytest.raises(RuntimeError):
            with extract.writing(tmp_path / name, None, True):
                raise RuntimeError
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "flags, message",
    [
        ({"output": "a.txt"}, "must end in .jsonl or .npz"),
        ({"output": "nowhere/a.npz"}, "in a directory that does not exist"),
    ],
)
def test_outputs_that_cannot_be(flags, message, tmp_path):
    with pytest.raises(ConfigError, match=message):
        extract.check_output(tmp_path / flags["output"])


def test_a_mistake_is_one_line_and_writes_nothing(directory, tmp_path):
    for flags, message in (
        ({"model": tmp_path}, "has no config.json; give a directory of python -m"),
        ({"input": ""}, "--input is missing"),
        ({"input": tmp_path / "empty.txt"}, "has no lines"),
    ):
        (tmp_path / "empty.txt").write_text("")
        result = run(
            "bert_jax.extract", *command(directory, tmp_path / "a.jsonl", **flags)
        )
        assert result.returncode == 2 and result.stderr.count("\n") == 1
        assert message in result.stderr
        assert not list(tmp_path.glob("a.*"))
