"""The reported difference between int8 and float32 weights."""

import gc
import weakref

import jax
import numpy as np
import pytest

from bert_jax import inference
from bert_jax.inference import TokenFeatures, quantization
from bert_jax.inference.quantization import (
    QuantizationCheck,
    features_difference,
    predictions_difference,
)
from bert_jax.interop import huggingface_write
from tests.conftest import use_mesh
from tests.finetuning import tuned
from tests.models import TOKENIZER


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    path = tmp_path_factory.mktemp("model")
    config, _, params = tuned.build("classification")
    head = tuned.HEADS["classification"]
    huggingface_write.write_tuned(path, params, config, head, TOKENIZER, 32)
    return path


def test_difference_of_rows_counts_equal_answers_or_gives_the_largest_change():
    labels = [{"label": "x"}, {"label": "y"}]
    other = [labels[0] | {"label": "y"}, labels[1]]
    assert predictions_difference(labels, labels).startswith("2 of the first 2 lines")
    assert predictions_difference(labels, other).startswith("1 of the first 2 lines")
    scores = [{"score": 0.5}, {"score": 1.0}]
    moved = [scores[0] | {"score": 0.25}, scores[1]]
    assert "score changed by at most 0.25" in predictions_difference(scores, moved)
    broken = [scores[0] | {"score": float("nan")}, scores[1]]
    assert "changed by at most nan" in predictions_difference(scores, broken)


def test_difference_of_features_is_the_smallest_cosine():
    def features(*values):
        nothing = np.zeros(1, np.int32)
        return [
            TokenFeatures(nothing, nothing, nothing, np.array(value))
            for value in values
        ]

    exact = features([1.0, 0.0], [0.0, 1.0])
    assert "1.0000 or more" in features_difference(exact, exact)
    pooled = np.eye(2, dtype=np.float32)
    assert "2 texts have cosines 1.0000" in features_difference(pooled, pooled)
    other = features([1.0, 0.0], [0.1, 1.0])
    assert "0.9950 or more" in features_difference(exact, other)  # rounded down
    broken = features([float("nan"), 0.0], [0.0, 1.0])
    assert "nan or more" in features_difference(exact, broken)
    no_token = features([0.0, 0.0], [0.0, 1.0])  # of a word; in both
    assert "1.0000 or more" in features_difference(no_token, no_token)


@pytest.mark.slow
def test_float32_weights_are_released_after_the_comparison(directory):
    use_mesh(1, 1, 1)
    model = inference.load(directory)
    arrays = jax.tree.leaves(model._params)
    kept = [weakref.ref(x) for x in arrays if x.ndim == 2]
    check = QuantizationCheck(
        model.quantized().features, model.features, features_difference
    )
    del model, arrays
    check(["w1"])
    gc.collect()
    assert kept and all(ref() is None for ref in kept)


@pytest.mark.parametrize("load", [inference.load, inference.load_tuned])
def test_int8_weights_take_less_memory(load, directory, capsys):
    use_mesh(1, 1, 1)
    exact = load(directory)
    small, _ = quantization.with_weights(exact, "int8", lambda model: model, max)
    assert small.num_bytes < 0.45 * exact.num_bytes  # scales are large in few dims
    assert load(directory, weights="int8").num_bytes == small.num_bytes
    assert capsys.readouterr().err.startswith("int8 weights: 0.0 MB instead of ")


def test_only_the_first_call_is_compared(capsys):
    calls = []

    def exact(texts):
        calls.append(len(texts))
        return [0.0] * len(texts)

    check = QuantizationCheck(
        lambda texts: [1.0] * len(texts), exact, lambda a, b: f"{len(a)} {len(b)}"
    )
    assert check(["x"] * 200) == [1.0] * 200
    check(["x"])
    assert calls == [quantization.NUM_COMPARED]
    assert capsys.readouterr().err == "int8 weights: 128 128\n" and check.secs >= 0
