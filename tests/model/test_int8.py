"""int8 weights: near to the float32 ones, a quarter of them, and told of."""

import dataclasses
import gc
import json
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax import extract
from bert_jax.inference import answers
from bert_jax.inference import features as features_lib
from bert_jax.inference.features import Features
from bert_jax.interop import huggingface_write
from bert_jax.loading import model as model_lib
from bert_jax.model import int8
from bert_jax.model.parameters import path_name
from tests.commands import run, run_well
from tests.conftest import use_mesh
from tests.finetuning import tuned
from tests.models import TOKENIZER


def quantized(model):
    return dataclasses.replace(model, params=int8.quantized(model.params))


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    path = tmp_path_factory.mktemp("model")
    config, _, params = tuned.build("classification")
    head = tuned.HEADS["classification"]
    huggingface_write.write_tuned(path, params, config, head, TOKENIZER, 32)
    lines = [f"w{i} w{2 * i} w{i + 3}" for i in range(1, 31)]
    (path / "lines.txt").write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.parametrize("mesh", [(1, 1, 1), (2, 2, 2)])
def test_each_weight_is_off_by_half_a_step_at_most(directory, mesh):
    use_mesh(*mesh)
    model = model_lib.read_tuned(str(directory))
    found = jax.jit(int8.dequantized)(int8.quantized(model).params)
    leaves, _ = jax.tree_util.tree_flatten_with_path(model.params)
    for (path, x), y in zip(leaves, jax.tree.leaves(found), strict=True):
        x, y = np.asarray(x), np.asarray(y)
        assert y.dtype == np.float32
        if x.ndim < 2:
            np.testing.assert_array_equal(x, y)
            continue
        axis = 0 if path_name(path).endswith("kernel") else 1
        step = np.abs(x).max(axis=axis, keepdims=True) / 127
        assert (np.abs(x - y) <= 0.51 * step).all(), path_name(path)
        assert np.abs(x - y).max() > 0


def test_they_take_a_quarter(directory):
    use_mesh(1, 1, 1)
    model = model_lib.read_tuned(str(directory))
    small = quantized(model)
    vectors = [x for x in jax.tree.leaves(model.params) if x.ndim < 2]
    matrices = [x for x in jax.tree.leaves(model.params) if x.ndim == 2]
    rest = sum(4 * x.size for x in vectors)
    numbers = sum(x.size for x in matrices)
    scales = sum(4 * max(x.shape) for x in matrices)  # at most
    assert int8.num_bytes(model.params) == rest + 4 * numbers
    assert numbers < int8.num_bytes(small.params) - rest <= numbers + scales


def test_predict_says_nearly_the_same_and_tells_of_the_difference(directory, tmp_path):
    rows = {}
    for weights in ("float32", "int8"):
        output = tmp_path / f"{weights}.jsonl"
        result = run(
            "bert_jax.predict",
            f"--model={directory}",
            f"--input={directory / 'lines.txt'}",
            f"--output={output}",
            f"--weights={weights}",
        )
        assert result.returncode == 0, result.stderr
        rows[weights] = [json.loads(line) for line in output.open()]
    assert "MB instead of" in result.stderr
    said = f"int8 weights: {answers.difference(rows['float32'], rows['int8'])}"
    assert said in result.stderr and "of the first 30 lines" in said
    for one, other in zip(rows["float32"], rows["int8"], strict=True):
        for name, share in one["probabilities"].items():
            assert other["probabilities"][name] == pytest.approx(share, abs=0.05)
    assert rows["float32"] != rows["int8"]


def test_a_difference_of_rows_counts_answers_or_measures_numbers():
    labels = [{"text": "a", "label": "x"}, {"text": "b", "label": "y"}]
    other = [labels[0] | {"label": "y"}, labels[1]]
    assert answers.difference(labels, labels).startswith("2 of the first 2 lines")
    assert answers.difference(labels, other).startswith("1 of the first 2 lines")
    scores = [{"text": "a", "score": 0.5}, {"text": "b", "score": 1.0}]
    moved = [scores[0] | {"score": 0.25}, scores[1]]
    assert "score changed by 0.25 at most" in answers.difference(scores, moved)
    broken = [scores[0] | {"score": float("nan")}, scores[1]]
    assert "changed by nan" in answers.difference(scores, broken)


def test_a_difference_of_features_is_their_least_cosine():
    def features(*values):
        nothing = np.zeros(1, np.int32)
        return [
            Features(nothing, nothing, nothing, np.array(value)) for value in values
        ]

    exact = features([1.0, 0.0], [0.0, 1.0])
    assert "1.0000 or more" in extract.difference(exact, exact)
    other = features([1.0, 0.0], [0.1, 1.0])
    assert "0.9950 or more" in extract.difference(exact, other)  # rounded down
    broken = features([float("nan"), 0.0], [0.0, 1.0])
    assert "nan or more" in extract.difference(exact, broken)


def test_extract_tells_of_the_difference(directory, tmp_path):
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


def test_float32_weights_are_let_go(directory):
    use_mesh(1, 1, 1)
    kept = [weakref.ref(x) for x in compare_and_forget(directory)[1]]
    gc.collect()
    assert all(ref() is None for ref in kept)


def compare_and_forget(directory):
    """Returns what is compared, after its only comparison, and float32 arrays."""
    model = model_lib.read_encoder(str(directory))
    arrays = [x for x in jax.tree.leaves(model.params) if x.ndim == 2]
    compared = int8.Compared(
        embed_with(quantized(model)), embed_with(model), extract.difference
    )
    compared([("w1",)])
    return compared, arrays


def embed_with(model):
    return features_lib.Extractor(
        model,
        layers="last",
        pooling="mean",
        max_length=32,
        batch_size=1,
        dtype=jnp.dtype("float32"),
    )


def test_the_comparison_is_made_once():
    calls = []

    def exact(texts):
        calls.append(len(texts))
        return [jnp.float32(0.0)] * len(texts)

    compared = int8.Compared(
        lambda texts: [1.0] * len(texts), exact, lambda a, b: f"{len(a)} {len(b)}"
    )
    assert compared(["x"] * 200) == [1.0] * 200
    compared(["x"])
    assert calls == [int8.NUM_COMPARED]
    assert compared.said == "128 128" and compared.secs >= 0
