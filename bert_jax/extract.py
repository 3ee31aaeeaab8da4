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
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from absl import flags

from bert_jax import cli, inference
from bert_jax.errors import ConfigError
from bert_jax.inference import quantization, text_input
from bert_jax.inference.encoder import TextEncoder, TokenFeatures
from bert_jax.inference.model import DTYPES, WEIGHTS, Parts
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
        row: dict[str, Any] = {"text": text_input.SEPARATOR.join(text)}
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
    rows = ((x.ids, x.starts, x.ends, x.values) for x in found)
    ids, starts, ends, values = zip(*rows, strict=True)
    return {
        "tokens": np.concatenate(ids),
        "starts": np.concatenate(starts),
        "ends": np.concatenate(ends),
        "features": np.concatenate(values),
        "lengths": np.array([len(row) for row in ids]),
    }


def open_model(path: str) -> tuple[TextEncoder, Callable[..., Any]]:
    """Loads the model; returns it and its `features`.

    With --weights=int8, the function is a QuantizationCheck.
    """
    chosen = {"layers": _LAYERS.value, "pooling": _POOLING.value}
    model = inference.load(
        path,
        max_length=_MAX_LENGTH.value,
        batch_size=_BATCH_SIZE.value,
        compute_dtype=_COMPUTE_DTYPE.value,
        lowercase=_LOWERCASE.value,
    )
    exact = functools.partial(model.features, **chosen)
    if _WEIGHTS.value == "float32":
        return model, exact
    small = model.quantized()
    print(quantization.memory_summary(model, small))
    found = functools.partial(small.features, **chosen)
    difference = quantization.features_difference
    return small, quantization.QuantizationCheck(found, exact, difference)


def main() -> None:
    path, source, output = cli.require("model", "input", "output")
    if Path(output).suffix not in FORMATS:
        formats = " or ".join(FORMATS)
        raise ConfigError(f"--output={output} must end in {formats}")
    file = cli.output_file("output", output, source)
    model, compute = open_model(path)
    cli.print_notes(model.notes)
    begin, num_texts = time.monotonic(), 0
    max_parts = 1 if _POOLING.value == "words" else 2
    progress = Progress("extracting", None, "texts")
    with writing(file, model.tokenizer.vocab) as write, progress:
        for texts in text_input.batches(source, max_parts):
            write(texts, compute(texts, on_batch=progress.add))
            num_texts += len(texts)
    secs = time.monotonic() - begin
    if isinstance(compute, quantization.QuantizationCheck):
        print(f"int8 weights: {compute.summary}")
        secs -= compute.secs
    truncated = model.num_truncated and f", {model.num_truncated:,} of them truncated"
    print(
        f"{num_texts:,} texts{truncated or ''}, {model.num_tokens:,} tokens in"
        f" {secs:.1f} s: {model.num_tokens / secs:,.0f} tokens/s, compilation included;"
        f" written to {output}"
    )


if __name__ == "__main__":
    cli.define_path("model", "directory of a trained model")
    cli.define_path("input", "file with one text per line; - for stdin")
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
    help_ = "maximum tokens of a text; default: the model's"
    _MAX_LENGTH = flags.DEFINE_integer("max_length", None, help_)
    _BATCH_SIZE = flags.DEFINE_integer(
        "batch_size", 32, "texts per step, over all devices", lower_bound=1
    )
    _COMPUTE_DTYPE = flags.DEFINE_enum(
        "compute_dtype", "float32", DTYPES, "bfloat16: faster on TPUs and GPUs"
    )
    help_ = "int8: a quarter of the memory; reports the difference for the first texts"
    _WEIGHTS = flags.DEFINE_enum("weights", "float32", WEIGHTS, help_)
    help_ = (
        "whether the model was trained on lower-cased text, if it does not record it"
    )
    _LOWERCASE = flags.DEFINE_bool("lowercase", None, help_)
    cli.run(main, __doc__)
