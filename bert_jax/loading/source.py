"""Opens the weights of a model in any supported format, and checks them.

The formats are Hugging Face directories with safetensors, those of `export` and
`finetune` included, TF1 checkpoints of google-research/bert, and workdirs of `train`,
whose newest checkpoint is used.
"""

import dataclasses
import os
import re
import shlex
from collections.abc import Collection
from pathlib import Path

import jax
import numpy as np

from bert_jax import small_files, storage
from bert_jax.checkpoint import integrity, workdir
from bert_jax.checkpoint.manager import Checkpoints
from bert_jax.config import ExperimentConfig
from bert_jax.data.corpus import corpus
from bert_jax.data.tokenizers import tokenizers
from bert_jax.errors import ConfigError, CorruptError
from bert_jax.interop import files, google_tf1, hub_models, huggingface_read
from bert_jax.interop.files import Source, SourceTokenizer
from bert_jax.interop.huggingface_write import WEIGHTS
from bert_jax.interop.weight_names import OURS
from bert_jax.loading import trained_run as run_lib
from bert_jax.model import parameters

# Prefixes of the parameters of pretraining heads, which a model may lack.
HEADS = ("bert.pooler.", "transform", "decoder_bias", "next_sentence.")
WORD = "bert.embeddings.word"
_MODELS = (
    "a directory of python -m bert_jax.export or of a Hugging Face BERT, its name on"
    " the Hub, a TF1 checkpoint with bert_config.json, or a workdir of python -m"
    " bert_jax.train"
)


def model_path(path: str, given_as: str) -> Path:
    """Returns the absolute path of a model, which is downloaded if it is elsewhere.

    A model on the Hugging Face Hub stays in the cache of huggingface_hub. A local path
    precedes a model of the same name. Errors name `given_as`, the flag, key or argument
    that has the path.
    """
    if not _is_on_hub(path):
        return local_path(path, given_as)
    directory = hub_models.model(path, given_as)
    if not any(directory.glob("*.safetensors")):
        name, _, revision = path.partition("@")
        advice = huggingface_read.conversion(name, revision or "main")
        raise ConfigError(
            f"{given_as}={path} has no {WEIGHTS} on the Hub, and files that are pickles"
            f" are not opened; {advice}"
        )
    return directory


def pinned(path: str, given_as: str) -> str:
    """Returns NAME@COMMIT for a model on the Hub, and other paths as `parse_path`."""
    if not _is_on_hub(path):
        return storage.parse_path(given_as, path)
    return f"{hub_models.parse(path)[0]}@{model_path(path, given_as).name}"


def is_pinned_as(path: str, recorded: str, given_as: str) -> bool:
    """Returns whether `pinned` may have recorded a path so earlier.

    A branch or tag on the Hub may have had any commit.
    """
    if not _is_on_hub(path):
        return recorded in (path, storage.parse_path(given_as, path))
    name, revision = hub_models.parse(path)
    recorded_name, _, commit = recorded.partition("@")
    is_commit = re.fullmatch("[0-9a-f]{40}", revision or "") is not None
    return name == recorded_name and (not is_commit or revision == commit)


def _is_on_hub(path: str) -> bool:
    is_local = os.path.lexists(path) or google_tf1.is_source(Path(path))
    return not is_local and hub_models.is_model(path)


def local_path(path: str, given_as: str) -> Path:
    """Returns the absolute path of a model or run, which is downloaded from a bucket.

    Of a workdir, the newest checkpoint and the config are downloaded. The files are
    removed when the process exits.
    """
    url = storage.parse_path(given_as, path)
    if not storage.is_remote(url):
        return Path(url).absolute()
    checkpoint = f"{integrity.DIRECTORY}/{integrity.newest_step(url)}/"
    is_workdir = storage.exists(f"{url}/{integrity.DIRECTORY}")

    def is_wanted(name: str) -> bool:
        if is_workdir:
            return name == workdir.CONFIG_FILE or name.startswith(checkpoint)
        return "/" not in name

    directory = os.path.join(storage.scratch_directory(), os.path.basename(url))
    storage.download(url, directory, is_wanted)
    if not os.path.isdir(directory):
        raise ConfigError(f"{given_as}={url}: there is no file; use another directory")
    return Path(directory)


def open_source(path: Path, given: str) -> Source:
    """Opens a model without reading its weights, and verifies its digests.

    The path is a directory or the prefix of a TF1 checkpoint. Errors name `given`.
    """
    if is_workdir(path):
        return open_workdir(path)
    if google_tf1.is_source(path):
        files.verify_digests(path if path.is_dir() else path.parent)
        return google_tf1.open_source(path)
    if (path / "config.json").is_file():
        files.verify_digests(path)
        return huggingface_read.open_source(path)
    raise not_a_model(given, path, _MODELS)


def not_a_model(given: str, path: Path, uses: str) -> ConfigError:
    """Returns the error for a path without a model, of which there are `uses`."""
    problem = "has no config.json"
    if not path.exists():
        problem = "does not exist"
        is_made = (path.parent / workdir.FINETUNING_FILE).exists()
        if path.name == "model" and is_made:
            problem = f"does not exist yet: the fine-tuning in {path.parent} is"
            return ConfigError(f"{given} {problem} not complete; run it again")
    elif path.is_file():
        problem = "is a file, not a directory"
    elif (path / "model" / "config.json").is_file():
        uses = str(path / "model")
    elif (path / google_tf1.CONFIG).exists() != any(path.glob("*.index")):
        has = [google_tf1.CONFIG, "checkpoint's .index"]
        has = has if (path / google_tf1.CONFIG).exists() else has[::-1]
        problem = f"has a {has[0]} but no {has[1]}"
    return ConfigError(f"{given} {problem}; use {uses}")


def is_workdir(directory: Path) -> bool:
    """Returns whether a directory is a workdir of `train`."""
    path = directory / workdir.CONFIG_FILE
    return path.is_file() and {"phases", "optimizer"} <= set(
        small_files.read_json(path)
    )


def describe_run(directory: Path) -> tuple[Source, ExperimentConfig]:
    """Returns a run without its tensors, and its config; opens no device."""
    config = workdir.config_of_run(str(directory), str(directory))
    corpus_dir = config.data.corpus_dir
    if not corpus.exists(corpus_dir):
        raise ConfigError(
            f"the vocabulary of the run in {directory} is in its corpus at"
            f" {corpus_dir!r}, which is missing; restore the corpus, or use an export"
            " of the run"
        )
    vocab_size = config.tokenizer.vocab_size
    tokenizer = tokenizers.read(corpus_dir, config.tokenizer)
    source = Source(
        directory=directory,
        sizes=dataclasses.asdict(config.model) | {"vocab_size": vocab_size},
        tokenizer=SourceTokenizer(
            Path(tokenizers.path_in(corpus_dir, config.tokenizer)),
            config.tokenizer.lowercase,
            lambda _: tokenizer,
            tokenizer.content(),
            config.tokenizer.kind,
        ),
        naming=OURS,
        tensors={},
        load=lambda _: [],
    )
    return source, config


def open_workdir(directory: Path) -> Source:
    """Opens the newest checkpoint of a workdir of `train`."""
    described, config = describe_run(directory)
    step = integrity.newest_step(str(directory))
    if not step:
        raise ConfigError(
            f"the run in {directory} has no checkpoint yet; wait until train has saved"
            " one"
        )
    for path in Path(integrity.directory_of(str(directory), step)).rglob("*"):
        files.refuse_link_outside(path, directory)
    run, output = f"--workdir={directory}", f"--output={directory}-export"
    export = shlex.join(["python", "-m", "bert_jax.export", run, output])
    remedy = f"use {directory}-export, written by: {export} --step="
    integrity.check(str(directory), step, remedy)
    checkpoints = Checkpoints(str(directory))
    # Raises if the corpus was replaced, because its vocabulary may be another one.
    checkpoints.position(step, corpus.read(config).sha256)
    checkpoints.close()
    _, params = run_lib.abstract_params(config)
    # Without shardings, because every process needs all parameters.
    like = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), params)

    def load(names: list[str]) -> list[np.ndarray]:
        mesh = jax.sharding.get_mesh()
        checkpoints = Checkpoints(str(directory))
        weights = run_lib.restore_weights(checkpoints, config, step, like, mesh)
        checkpoints.close()
        arrays = parameters.by_name(weights)
        return [arrays[name] for name in names]

    return dataclasses.replace(described, tensors=parameters.shapes(like), load=load)


def check_tensors(
    source: Source,
    wanted: dict[str, tuple[int, ...]],
    optional: tuple[str, ...] = (),
    free_rows: Collection[str] = (),
) -> None:
    """Checks that a source has the tensors of a model.

    Parameters with a prefix in `optional` may be missing, and the tables in `free_rows`
    may have another number of rows.
    """
    missing = [
        name
        for name in wanted
        if name not in source.shapes and not name.startswith(optional)
    ]
    if missing:
        raise ConfigError(
            f"{source.directory} lacks {len(missing)} of the model's tensors:"
            f" {some(missing)}"
        )

    def fits(shape: tuple[int, ...], expected: tuple[int, ...], name: str) -> bool:
        first = 1 if name in free_rows else 0
        same_rank = len(shape) == len(expected)
        return same_rank and shape[first:] == expected[first:] and 0 not in shape

    wrong = [
        f"{name} is {list(source.shapes[name])}, expected {list(shape)}"
        for name, shape in wanted.items()
        if name in source.shapes and not fits(source.shapes[name], shape, name)
    ]
    if wrong:
        raise ConfigError(
            f"{source.directory} does not match the config in {len(wrong)} tensor(s):"
            f" {some(wrong)}"
        )
    vocab_size, num_rows = source.sizes.get("vocab_size"), source.shapes[WORD][0]
    # A table may be padded, for example to a multiple of 64.
    is_within = type(vocab_size) is int and 0 < vocab_size <= num_rows
    if vocab_size is not None and not is_within:
        raise CorruptError(
            f"{source.directory} has vocab_size={vocab_size!r}, but its table has"
            f" {num_rows} rows; download it again"
        )


def read_finite(source: Source, wanted: Collection[str]) -> dict[str, np.ndarray]:
    """Reads the wanted weights; raises ConfigError if one is NaN or infinite."""
    arrays = source.read([name for name in wanted if name in source.names])
    for name, array in arrays.items():
        if not np.isfinite(array).all():
            raise ConfigError(
                f"{source.directory} has NaN or infinity in {name}; use an older"
                " checkpoint"
            )
    return arrays


def some(items: list[str]) -> str:
    """Returns the first three items, with control characters escaped."""
    shown = [item if item.isprintable() else repr(item) for item in items[:3]]
    more = f" and {len(items) - 3} more" if len(items) > 3 else ""
    return ", ".join(shown) + more
