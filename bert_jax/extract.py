"""Text -> contextual features, from any layer of a trained model.

    python -m bert_jax.extract --model=DIR --input=FILE --output=FILE
        [--layers=first|second_to_last|last|sum_last_four|concat_last_four|sum_all]
        [--pooling=none|words|mean|cls] [--max_length=N] [--batch_size=N]
        [--compute_dtype=float32|bfloat16] [--weights=float32|int8]

DIR is one of `export` or of any Hugging Face BERT. Each line of FILE, or of standard
input where that is "-", is a text, or two with " ||| " between them. The output is a
.jsonl, an object a line in the order of the texts, or an .npz:

    without pooling    tokens (ids), starts, ends (characters of the text), features
                       [tokens, F], and lengths, the tokens of each text
    --pooling=words    the same of words: what stands between spaces, " ||| " as well,
                       with the id and the features of a word's first token
    mean, cls          features [texts, F]
"""

import contextlib
import dataclasses
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import flags

from bert_jax import cli
from bert_jax.config import MeshConfig
from bert_jax.data.tokenizers.tokenizers import Tokenizer
from bert_jax.distributed import devices
from bert_jax.distributed import mesh as mesh_lib
from bert_jax.errors import ConfigError
from bert_jax.inference import features as features_lib
from bert_jax.inference import text_input
from bert_jax.inference.features import Extractor, Features
from bert_jax.inference.text_input import Parts
from bert_jax.loading import model as model_lib
from bert_jax.loading.model import Trained
from bert_jax.model import int8
from bert_jax.monitoring.progress import Progress

WRITERS = (".jsonl", ".npz")


@contextlib.contextmanager
def writing(
    path: Path, tokenizer: Tokenizer | None, is_pooled: bool
) -> Iterator[Callable[..., None]]:
    """Gives a function that takes texts and features; the file appears at the end."""
    with cli.replacing(path) as tmp:
        if path.suffix == ".jsonl":
            with tmp.open("w", encoding="utf-8") as file:
                yield lambda texts, found: _write_json(
                    file, tokenizer, is_pooled, texts, found
                )
        else:
            kept: list[Features] = []
            yield lambda texts, found: kept.extend(found)
            arrays: Any = as_arrays(kept, is_pooled)
            with tmp.open("wb") as file:
                np.savez(file, **arrays)


def _write_json(
    file: Any,
    tokenizer: Any,
    is_pooled: bool,
    texts: list[Parts],
    found: list[Features],
) -> None:
    for text, features in zip(texts, found, strict=True):
        row: dict[str, Any] = {"text": text_input.SEPARATOR.join(text)}
        if not is_pooled:
            row["tokens"] = [tokenizer.vocab[i] for i in features.ids]
            row["starts"] = features.starts.tolist()
            row["ends"] = features.ends.tolist()
        # As many decimals as google-research/bert extract_features.py writes.
        row["features"] = np.round(features.values.astype(float), 6).tolist()
        file.write(json.dumps(row, ensure_ascii=False) + "\n")


def as_arrays(found: list[Features], is_pooled: bool) -> dict[str, np.ndarray]:
    """Returns the arrays of an .npz."""
    if is_pooled:
        return {"features": np.stack([features.values for features in found])}
    return {
        "tokens": np.concatenate([features.ids for features in found]),
        "starts": np.concatenate([features.starts for features in found]),
        "ends": np.concatenate([features.ends for features in found]),
        "features": np.concatenate([features.values for features in found]),
        "lengths": np.array([len(features.ids) for features in found]),
    }


def extract(
    compute: Callable[[list[Parts]], list[Features]],
    path: str,
    write: Callable[..., None],
    max_parts: int,
) -> int:
    """Writes the features of all texts, and returns their number."""
    num_texts = 0
    for texts in text_input.batches(path, max_parts):
        write(texts, compute(texts))
        num_texts += len(texts)
    return num_texts


def open_model(
    path: str,
) -> tuple[Extractor | int8.QuantizationCheck, Extractor, Tokenizer]:
    """Returns what computes features as the flags ask, the extractor in it, and the
    model's tokenizer."""
    model = model_lib.read_encoder(path)
    extractor = make_extractor(model)
    if _WEIGHTS.value == "float32":
        return extractor, extractor, model.tokenizer
    small = dataclasses.replace(model, params=int8.quantize(model.params))
    print(int8.memory_summary(model.params, small.params))
    extractor_of_small = make_extractor(small)
    compared = int8.QuantizationCheck(extractor_of_small, extractor, difference)
    return compared, extractor_of_small, model.tokenizer


def make_extractor(model: Trained) -> Extractor:
    """Returns what the flags ask for."""
    return Extractor(
        model,
        layers=_LAYERS.value,
        pooling=_POOLING.value,
        max_length=_MAX_LENGTH.value or model.max_length,
        batch_size=_BATCH_SIZE.value,
        dtype=jnp.dtype(_COMPUTE_DTYPE.value),
    )


def difference(exact: list[Features], found: list[Features]) -> str:
    """Returns words on how far features are from the exact ones."""
    cosines = []
    for one, other in zip(exact, found, strict=True):
        a, b = one.values, other.values
        norms = np.linalg.norm(a, axis=-1) * np.linalg.norm(b, axis=-1)
        # Words without a token are 0 in both.
        products = np.where(norms == 0, 1, (a * b).sum(axis=-1))
        cosines.append(np.ravel(products / np.where(norms == 0, 1, norms)))
    least = np.floor(1e4 * np.min(np.concatenate(cosines), initial=1)) / 1e4
    return f"features of the first {len(exact)} texts have cosines {least:.4f} or more"


def main() -> None:
    model, source, path = cli.require("model", "input", "output")
    output = Path(path)
    if output.suffix not in WRITERS:
        raise ConfigError(f"--output={output} must end in {' or '.join(WRITERS)}")
    cli.check(output, source)
    devices.open_local_devices()
    mesh = MeshConfig(data=-1, fsdp=1, tensor=1, shard_optimizer=False)
    jax.set_mesh(mesh_lib.make_mesh(mesh))
    compute, extractor, tokenizer = open_model(model)
    begin = time.monotonic()
    is_pooled = _POOLING.value in features_lib.TEXT_POOLING
    progress = Progress("extracting", None, "texts")
    with writing(output, tokenizer, is_pooled) as write, progress:
        extractor.on_texts = progress.add
        max_parts = 1 if _POOLING.value == "words" else 2
        num_texts = extract(compute, source, write, max_parts)
    secs = time.monotonic() - begin
    if isinstance(compute, int8.QuantizationCheck):
        print(f"int8 weights: {compute.summary}")
        secs -= compute.secs
    num_tokens = extractor.num_tokens
    cut = (
        f", {extractor.num_truncated:,} of them cut" if extractor.num_truncated else ""
    )
    print(
        f"{num_texts:,} texts{cut}, {num_tokens:,} tokens in {secs:.1f} s:"
        f" {num_tokens / secs:,.0f} tokens/s with compiling; written to {output}"
    )


if __name__ == "__main__":
    flags.DEFINE_string("model", None, "directory of a trained model")
    flags.DEFINE_string("input", None, "file, a text a line; - for stdin")
    flags.DEFINE_string("output", None, "file to write: .npz or .jsonl")
    _LAYERS = flags.DEFINE_enum(
        "layers", "last", list(features_lib.LAYERS), "which, and how to combine them"
    )
    _POOLING = flags.DEFINE_enum(
        "pooling",
        "none",
        features_lib.POOLING,
        "of tokens, or of words by their first tokens, or the tokens' mean, or [CLS]",
    )
    _MAX_LENGTH = flags.DEFINE_integer(
        "max_length", None, "tokens of a text; what the model was made for if absent"
    )
    _BATCH_SIZE = flags.DEFINE_integer(
        "batch_size", 32, "texts at once, over all devices", lower_bound=1
    )
    _COMPUTE_DTYPE = flags.DEFINE_enum(
        "compute_dtype",
        "float32",
        ["float32", "bfloat16"],
        "of the computation; bfloat16 is faster on TPUs and GPUs",
    )
    _WEIGHTS = flags.DEFINE_enum(
        "weights",
        "float32",
        ["float32", "int8"],
        "int8: a quarter of the memory; what that changes is told for the first texts",
    )
    cli.run(main, __doc__)
