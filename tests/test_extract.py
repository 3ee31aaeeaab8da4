"""The command: from a file or standard input to JSON lines or an .npz."""

import json

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from bert_jax.interop import huggingface_write
from tests.commands import run, run_well
from tests.finetuning import tuned
from tests.models import TOKENIZER

LINES = ["w1 w2 ||| w3", "", "W4 nowhere", "w5"]


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    path = tmp_path_factory.mktemp("model")
    config, _, params = tuned.build("classification")
    head = tuned.HEADS["classification"]
    huggingface_write.write_tuned(path, params, config, head, TOKENIZER, 32)
    (path / "lines.txt").write_text("\n".join(LINES) + "\n")
    return path


def command(directory, output, /, **flags):
    flags = {
        "model": directory,
        "output": output,
        "input": directory / "lines.txt",
    } | flags
    return [
        *(f"--{name}={value}" for name, value in flags.items()),
    ]


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


@pytest.mark.slow
def test_pooled_features_are_one_vector_per_text(directory, tmp_path):
    flags = {"pooling": "mean", "layers": "sum_all", "max_length": 8}
    run_well("bert_jax.extract", *command(directory, tmp_path / "a.npz", **flags))
    assert np.load(tmp_path / "a.npz")["features"].shape == (4, 32)
    run_well("bert_jax.extract", *command(directory, tmp_path / "a.jsonl", **flags))
    (row, *_) = [json.loads(line) for line in (tmp_path / "a.jsonl").open()]
    assert set(row) == {"text", "features"} and len(row["features"]) == 32


@pytest.mark.slow
def test_a_linear_layer_tags_words_by_their_features(directory, tmp_path):
    """The weights of the model are random."""
    random, read = np.random.default_rng(0), {}
    for name in ("train", "dev"):
        numbers = random.integers(20, size=(60, 6))
        lines = [" ".join(f"w{i}" for i in row) for row in numbers]
        (tmp_path / "lines.txt").write_text("\n".join(lines) + "\n")
        flags = {"input": tmp_path / "lines.txt", "pooling": "words", "layers": "first"}
        stdout = run_well(
            "bert_jax.extract", *command(directory, tmp_path / "words.npz", **flags)
        )
        assert "60 texts, 480 tokens in" in stdout  # 6 words, [CLS] and [SEP]
        arrays = np.load(tmp_path / "words.npz")
        assert arrays["lengths"].tolist() == [6] * 60
        tags = np.where(numbers.ravel() % 3 == 0, "B-name", "O")
        read[name] = arrays["features"], tags
    tagger = LogisticRegression(max_iter=1000).fit(*read["train"])
    features, tags = read["dev"]
    assert np.mean(tags == "O") < 0.7
    assert tagger.score(features, tags) > 0.95


@pytest.mark.slow
def test_int8_weights_report_the_difference(directory, tmp_path):
    stdout = run_well(
        "bert_jax.extract",
        f"--model={directory}",
        f"--input={directory / 'lines.txt'}",
        f"--output={tmp_path / 'a.npz'}",
        "--pooling=mean",
        "--weights=int8",
    )
    assert "int8 weights: 0.0 MB instead of" in stdout
    cosine = float(stdout.split("have cosines ")[1].split()[0])
    assert 0.99 < cosine <= 1


@pytest.mark.slow
def test_a_mistake_is_one_line_and_writes_nothing(directory, tmp_path):
    for flags, message in (
        ({"model": tmp_path}, "has no config.json; use a directory of python -m"),
        ({"input": ""}, "--input is missing"),
        ({"output": "a.txt"}, "must end in .jsonl or .npz"),
        ({"input": tmp_path / "a.jsonl"}, "is the input file; give another file"),
        ({"model": "~nouser/x"}, "model='~nouser/x': there is no such user"),
        ({"input": tmp_path / "empty.txt"}, "has no lines"),
    ):
        (tmp_path / "empty.txt").write_text("")
        result = run(
            "bert_jax.extract", *command(directory, tmp_path / "a.jsonl", **flags)
        )
        assert result.returncode == 2 and result.stderr.count("error: ") == 1
        assert message in result.stderr
        assert not list(tmp_path.glob("a.*"))
