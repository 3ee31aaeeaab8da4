"""Extracts features of texts from any layer of a model.

    python -m bert_jax.extract --model=DIR --input=FILE --output=FILE
        [--layers=first|second_to_last|last|sum_last_four|concat_last_four|sum_all]
        [--pooling=none|words|mean|cls] [--max_length=N] [--batch_size=N]
        [--compute_dtype=float32|bfloat16] [--weights=float32|int8]
        [--lowercase=true|false]

DIR is a directory of `export`, any Hugging Face BERT, a TF1 checkpoint of
google-research/bert, or a workdir of `train`. Each line of FILE, or of standard input
for --input=-, is a text, or a pair with " ||| " between its texts. The output is a
.jsonl with one object per line, or an .npz, in the order of the texts:

    --pooling=none         tokens (ids), starts, ends (characters of the text), features
                           [tokens, F], and lengths, the number of tokens of each text
    --pooling=words        the same for words, separated by spaces (" ||| " is a word):
                           the id and the features of a word's first token
    --pooling=mean or cls  features [texts, F]; the mean is not scaled to length 1, even
                           if the model's modules.json has Normalize

In Python: `bert_jax.inference.load(DIR).features(texts)`.
"""

import contextlib
import functools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from absl import flags

from bert_jax import cli, inference
from bert_jax.inference import lines
from bert_jax.inference.encoder import TokenFeatures
from bert_jax.inference.model import Parts
from bert_jax.monitoring.progress import Progress

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
        row: dict[str, Any] = {"text": lines.SEPARATOR.join(text)}
        if isinstance(features, TokenFeatures):
            row["tokens"] = [vocab[i] for i in features.ids]
            row["starts"] = features.starts.tolist()
            row["ends"] = features.ends.tolist()
            features = features.values
        # Six decimals, as google-research/bert extract_features.py writes.
        row["features"] = np.round(features.astype(float), 6).tolist()
        file.write(json.dumps(row, ensure_ascii=False) + "\n")


def as_arrays(found: list[Any]) -> dict[str, Any]:
    """Returns the arrays of an .npz."""
    if not isinstance(found[0], TokenFeatures):
        return {"features": np.stack(found)}
    attributes = {"tokens": "ids", "starts": "starts", "ends": "ends"}
    attributes["features"] = "values"
    return {
        name: np.concatenate([getattr(features, attribute) for features in found])
        for name, attribute in attributes.items()
    } | {"lengths": np.array([len(features.ids) for features in found])}


def main() -> None:
    path, source, output = cli.require("model", "input", "output")
    file = cli.output_file("output", output, FORMATS, source)
    model = inference.load(path, **lines.options())
    chosen = {"layers": _LAYERS.value, "pooling": _POOLING.value}
    compute = functools.partial(model.features, **chosen)
    cli.print_notes(model.notes)
    max_parts = 1 if _POOLING.value == "words" else 2
    with (
        writing(file, model.tokenizer.vocab) as write,
        Progress("extracting", None, "texts") as progress,
    ):
        num_texts, secs = lines.process(source, max_parts, compute, write, progress)
    lines.print_summary(model, num_texts, secs, output)


if __name__ == "__main__":
    lines.define_flags(32, has_weights=True, has_lowercase=True)
    cli.define_path("output", "file to write: .npz or .jsonl")
    _LAYERS = flags.DEFINE_enum(
        "layers", "last", list(inference.LAYERS), "layers, and how to combine them"
    )
    _POOLING = flags.DEFINE_enum(
        "pooling",
        "none",
        inference.POOLING,
        "one vector per token (none), per word (words), or per text (mean, or [CLS])",
    )
    cli.run(main, __doc__)
