"""Compares the results of int8 weights with those of float32 weights."""

import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from bert_jax.inference.encoder import TokenFeatures
from bert_jax.inference.model import Model

NUM_COMPARED = 128  # inputs that are computed with both int8 and float32 weights
# Keys of discrete predictions, which are compared for equality.
DISCRETE = ("label", "labels", "choice", "tags", "answer")


class QuantizationCheck:
    """A function with int8 weights whose first call is compared with float32 weights.

    Prints the difference. `secs` is the time that the comparison took.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        exact: Callable[[Any], Any],
        difference: Callable[[Any, Any], str],
    ):
        """Stores both functions, which map a list of texts to one result each."""
        self._function, self._difference, self.secs = function, difference, 0.0
        self._exact: Callable[[Any], Any] | None = exact

    def __call__(self, texts: Sequence[Any], **options: Any) -> Any:
        found = self._function(texts, **options)
        if self._exact:
            begin = time.monotonic()
            exact = self._exact(texts[:NUM_COMPARED])
            difference = self._difference(exact, found[: len(exact)])
            print(f"int8 weights: {difference}", file=sys.stderr)
            self._exact = None  # releases the float32 weights
            self.secs = time.monotonic() - begin
        return found


def with_weights(
    model: Model,
    weights: str | None,
    function_of: Callable[[Any], Callable[..., Any]],
    difference: Callable[[Any, Any], str],
) -> tuple[Any, Callable[..., Any]]:
    """Returns a float32 model with other weights, and a function of it.

    With int8 weights the function is a QuantizationCheck, and the memory is printed.
    """
    if weights == "float32":
        return model, function_of(model)
    small = model.quantized()
    sizes = f"{small.num_bytes / 1e6:,.1f} MB instead of {model.num_bytes / 1e6:,.1f}"
    print(f"int8 weights: {sizes} MB", file=sys.stderr)
    return small, QuantizationCheck(function_of(small), function_of(model), difference)


def features_difference(
    exact: Sequence[TokenFeatures | np.ndarray],
    found: Sequence[TokenFeatures | np.ndarray],
) -> str:
    """Returns the smallest cosine between features and the exact ones, in words."""
    cosines = []
    for a, b in zip(map(_values, exact), map(_values, found), strict=True):
        norms = np.linalg.norm(a, axis=-1) * np.linalg.norm(b, axis=-1)
        # Words without a token are 0 in both.
        products = np.where(norms == 0, 1, (a * b).sum(axis=-1))
        cosines.append(np.ravel(products / np.where(norms == 0, 1, norms)))
    least = np.floor(1e4 * np.min(np.concatenate(cosines), initial=1)) / 1e4
    return f"features of the first {len(exact)} texts have cosines {least:.4f} or more"


def _values(features: TokenFeatures | np.ndarray) -> np.ndarray:
    return features.values if isinstance(features, TokenFeatures) else features


def predictions_difference(
    exact: Sequence[dict[str, Any]], found: Sequence[dict[str, Any]]
) -> str:
    """Returns how many predictions equal the exact ones, or the largest change."""
    for key in DISCRETE:
        if key in exact[0]:
            same = sum(a[key] == b[key] for a, b in zip(exact, found, strict=True))
            return f"{same} of the first {len(exact)} lines have the same {key}"
    key = next(iter(exact[0]))
    changes = [a[key] - b[key] for a, b in zip(exact, found, strict=True)]
    most = np.abs(changes).max()
    return f"in the first {len(exact)} lines, {key} changed by at most {most:.2g}"
