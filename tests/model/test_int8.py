"""Tests of int8 weights: their error, their memory and the reported difference."""

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
    return dataclasses.replace(model, params=int8.quantize(model.params))


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
def test_quantization_error_is_at_most_half_a_step(directory, mesh):
    use_mesh(*mesh)
    model = model_lib.read_tuned(str(directory))
    found = jax.jit(int8.dequantize)(quantized(model).params)
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


def test_int8_weights_take_a_quarter_of_the_memory(directory):
    use_mesh(1, 1, 1)
    model = model_lib.read_tuned(str(directory))
    small = quantized(model)
    vectors = [x for x in jax.tree.leaves(model.params) if x.ndim < 2]
    matrices = [x for x in jax.tree.leaves(model.params) if x.ndim == 2]
    rest = sum(4 * x.size for x in vectors)
    numbers = sum(x.size for x in matrices)
    most_scales = sum(4 * max(x.shape) for x in matrices)
    assert int8.num_bytes(model.params) == rest + 4 * numbers
    assert numbers < int8.num_bytes(small.params) - rest <= numbers + most_scales


def test_predict_reports_the_difference_which_is_small(directory, tmp_path):
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
    summary = f"int8 weights: {answers.difference(rows['float32'], rows['int8'])}"
    assert summary in result.stderr and "of the first 30 lines" in summary
    for one, other in zip(rows["float32"], rows["int8"], strict=True):
        for name, share in one["probabilities"].items():
            assert other["probabilities"][name] == pytest.approx(share, abs=0.05)
    assert rows["float32"] != rows["int8"]


def test_difference_of_rows_counts_equal_answers_or_gives_the_largest_change():
    labels = [{"text": "a", "label": "x"}, {"text": "b", "label": "y"}]
    other = [labels[0] | {"label": "y"}, labels[1]]
    assert answers.difference(labels, labels).startswith("2 of the first 2 lines")
    assert answers.difference(labels, other).startswith("1 of the first 2 lines")
    scores = [{"text": "a", "score": 0.5}, {"text": "b", "score": 1.0}]
    moved = [scores[0] | {"score": 0.25}, scores[1]]
    assert "score changed by 0.25 at most" in answers.difference(scores, moved)
    broken = [scores[0] | {"score": float("nan")}, scores[1]]
    assert "changed by nan" in answers.difference(scores, broken)


def test_difference_of_features_is_the_smallest_cosine():
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


def test_extract_reports_the_difference(directory, tmp_path):
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


def test_float32_weights_are_released_after_the_comparison(directory):
    use_mesh(1, 1, 1)
    kept = [weakref.ref(x) for x in checked_model(directory)[1]]
    gc.collect()
    assert all(ref() is None for ref in kept)


def checked_model(directory):
    """Returns a QuantizationCheck after its comparison, and the float32 arrays."""
    model = model_lib.read_encoder(str(directory))
    arrays = [x for x in jax.tree.leaves(model.params) if x.ndim == 2]
    check = int8.QuantizationCheck(
        embed_with(quantized(model)), embed_with(model), extract.difference
    )
    check([("w1",)])
    return check, arrays


def embed_with(model):
    return features_lib.Extractor(
        model,
        layers="last",
        pooling="mean",
        max_length=32,
        batch_size=1,
        dtype=jnp.dtype("float32"),
    )


def test_only_the_first_call_is_compared():
    calls = []

    def exact(texts):
        calls.append(len(texts))
        return [jnp.float32(0.0)] * len(texts)

    check = int8.QuantizationCheck(
        lambda texts: [1.0] * len(texts), exact, lambda a, b: f"{len(a)} {len(b)}"
    )
    assert check(["x"] * 200) == [1.0] * 200
    check(["x"])
    assert calls == [int8.NUM_COMPARED]
    assert check.summary == "128 128" and check.secs >= 0
