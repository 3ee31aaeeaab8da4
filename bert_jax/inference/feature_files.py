"""Writes features of texts to a .jsonl or .npz file."""

import contextlib
import functools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from bert_jax import cli
from bert_jax.inference import text_input
from bert_jax.inference.features import TokenFeatures
from bert_jax.inference.options import Parts

FORMATS = (".jsonl", ".npz")


@contextlib.contextmanager
def writing(path: Path, vocab: tuple[str, ...]) -> Iterator[Callable[..., None]]:
    """Yields a function that writes features; `path` appears when it is complete."""
    if path.suffix == ".jsonl":
        with cli.replacing(path) as file:
            yield functools.partial(write_json, file, vocab)
    else:
        with cli.replacing(path, "xb") as file:
            kept: list[Any] = []
            yield lambda texts, found: kept.extend(found)
            np.savez(file, **as_arrays(kept))


def write_json(
    file: Any,
    vocab: tuple[str, ...],
    texts: list[Parts],
    found: list[TokenFeatures] | np.ndarray,
) -> None:
    """Writes one JSON object per text."""
    for text, features in zip(texts, found, strict=True):
        row: dict[str, Any] = {"text": text_input.SEPARATOR.join(text)}
        if isinstance(features, TokenFeatures):
            row["tokens"] = [vocab[i] for i in features.ids]
            row["starts"] = features.starts.tolist()
            row["ends"] = features.ends.tolist()
            features = features.values
        # As many decimals as google-research/bert extract_features.py writes.
        row["features"] = np.round(features.astype(float), 6).tolist()
        file.write(json.dumps(row, ensure_ascii=False) + "\n")


def as_arrays(found: list[Any]) -> dict[str, Any]:
    """Returns the arrays of an .npz."""
    if not isinstance(found[0], TokenFeatures):
        return {"features": np.stack(found)}
    return {
        "tokens": np.concatenate([features.ids for features in found]),
        "starts": np.concatenate([features.starts for features in found]),
        "ends": np.concatenate([features.ends for features in found]),
        "features": np.concatenate([features.values for features in found]),
        "lengths": np.array([len(features.ids) for features in found]),
    }
