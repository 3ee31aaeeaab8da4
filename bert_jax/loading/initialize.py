"""Initializes a run from the weights of a trained model.

config.init_from is a directory of `export` or of any Hugging Face BERT with
safetensors, a TF1 checkpoint of google-research/bert, or a workdir of `train`, whose
newest checkpoint is read. Only its weights are used; the optimizer state and the
position in the data are those of a new run.
"""

import dataclasses
from pathlib import Path

import jax
import numpy as np

from bert_jax import storage
from bert_jax.checkpoint import integrity, workdir
from bert_jax.checkpoint.manager import Checkpoints
from bert_jax.config import ExperimentConfig
from bert_jax.data.corpus import corpus
from bert_jax.data.tokenizers import tokenizers
from bert_jax.errors import ConfigError, CorruptError
from bert_jax.interop import files, google_tf1, huggingface_read
from bert_jax.interop.files import Source
from bert_jax.loading import run as run_lib
from bert_jax.loading import vocabulary
from bert_jax.model import parameters
from bert_jax.model.parameters import path_name

# Prefixes of optional parameters, which are initialized randomly if they are missing.
HEADS = ("bert.pooler.", "transform", "decoder_bias", "next_sentence.")
WORD, POSITION = "bert.embeddings.word", "bert.embeddings.position"
BY_TOKEN = {WORD, "decoder_bias"}  # tables with a row for each token


@dataclasses.dataclass(frozen=True)
class Weights:
    """The initial weights of a run.

    Attributes:
      arrays: float32 parameters by name; missing ones are initialized randomly.
      notes: a line for each change or omission.
    """

    arrays: dict[str, np.ndarray]
    notes: tuple[str, ...]


def open_source(config: ExperimentConfig) -> Source:
    """Opens the model at config.init_from without reading its weights.

    Raises:
      ConfigError: if there is no model, it is corrupt, or its architecture or sizes
        differ from the config.
    """
    path = _local(config.init_from)
    source = open_workdir(path) if is_workdir(path) else open_directory(path, config)
    _check_sizes(source, config)
    _check_tensors(source, parameter_shapes(config))
    return source


def open_directory(path: Path, config: ExperimentConfig) -> Source:
    """Opens a Hugging Face or TF1 model; verifies only its own SHA256SUMS.

    Raises:
      ConfigError: if there is no model, or it is corrupt.
    """
    names = parameter_shapes(config)
    if google_tf1.is_source(path):
        files.verify_digests(path if path.is_dir() else path.parent)
        return google_tf1.open_source(path, names)
    if (path / "config.json").is_file():
        files.verify_digests(path)
        tokenizer_file = Path(tokenizers.path_in("", config.tokenizer)).name
        return huggingface_read.open_source(path, names, tokenizer_file)
    raise ConfigError(_no_source(config.init_from, path))


def _local(init_from: str) -> Path:
    try:
        path = Path(init_from).expanduser().absolute()
    except RuntimeError:  # ~unknown_user
        path = None
    if path is None or "://" in init_from or not init_from.isprintable():
        raise ConfigError(
            f"config.init_from={init_from!r} is not a local path; copy the model to a"
            " local directory"
        )
    return path


def _no_source(init_from: str, path: Path) -> str:
    problem = "has no config.json"
    if not path.exists():
        problem = "does not exist"
    elif path.is_file():
        problem = "is a file, not a directory"
    elif (path / google_tf1.CONFIG).exists():
        problem = f"has a {google_tf1.CONFIG} but no checkpoint's .index"
    elif any(path.glob("*.index")):
        problem = f"has a checkpoint's .index but no {google_tf1.CONFIG}"
    return (
        f"config.init_from={init_from!r} {problem}; use a Hugging Face directory of a"
        " BERT, a TF1 checkpoint with bert_config.json, or a workdir of python -m"
        " bert_jax.train"
    )


def parameter_shapes(config: ExperimentConfig) -> dict[str, tuple[int, ...]]:
    """Returns the shape of every parameter of the run's model, by name."""
    _, params = run_lib.abstract_params(config)
    leaves, _ = jax.tree_util.tree_flatten_with_path(params)
    return {path_name(path): leaf.shape for path, leaf in leaves}


def read(
    source: Source, config: ExperimentConfig, tokenizer: tokenizers.Tokenizer
) -> Weights:
    """Reads the source's weights and adapts them to the run's vocabulary and positions.

    Raises:
      ConfigError: if the vocabularies do not match, or a file is corrupt.
    """
    rows, notes_on_rows = vocabulary.match(source, config, tokenizer)
    wanted = parameter_shapes(config)
    arrays, notes = source.read(), list(source.notes)
    for name, array in arrays.items():
        if not np.isfinite(array).all():
            raise ConfigError(
                f"{source.directory} has NaN or infinity in {name}; use an older"
                " checkpoint of it"
            )
    missing = [name for name in wanted if name not in arrays]
    if missing:
        notes.append(f"missing, initialized randomly: {vocabulary.some(missing)}")
    if source.unused:
        notes.append(f"unused tensors: {vocabulary.some(list(source.unused))}")
    notes += notes_on_rows
    if rows is not None:
        for name in BY_TOKEN & arrays.keys():
            arrays[name] = vocabulary.averaged(arrays[name], rows)
    num_positions, (num_wanted, _) = len(arrays[POSITION]), wanted[POSITION]
    if num_positions < num_wanted:
        repeats = -(-num_wanted // num_positions)
        arrays[POSITION] = np.tile(arrays[POSITION], (repeats, 1))[:num_wanted]
        notes.append(f"{num_positions} positions, repeated to make {num_wanted}")
    return Weights(arrays, tuple(notes))


def is_workdir(directory: Path) -> bool:
    """Returns whether a directory is a workdir of `train`."""
    path = directory / workdir.CONFIG_FILE
    return path.is_file() and {"phases", "optimizer"} <= set(storage.read_json(path))


def open_workdir(directory: Path) -> Source:
    """Opens the newest checkpoint of a workdir of `train`.

    Raises:
      ConfigError: if it has no checkpoint, its corpus is missing or replaced, or the
        checkpoint is corrupt.
    """
    source = workdir.read_config(str(directory))
    assert source is not None, "is_workdir has found config.json"
    corpus_dir = source.data.corpus_dir
    if not corpus.exists(corpus_dir):
        raise ConfigError(
            f"the vocabulary of the run in {directory} is in its corpus at"
            f" {corpus_dir!r}, which is missing; restore the corpus, or use an export"
            " of the run"
        )
    step = integrity.newest_step(str(directory))
    if not step:
        raise ConfigError(f"the run in {directory} has no checkpoint yet; use another")
    for path in integrity.directory_of(str(directory), step).rglob("*"):
        files.refuse_link_outside(path, directory)
    remedy = "use a model written by python -m bert_jax.export --step={}"
    integrity.check(str(directory), step, remedy)
    checkpoints = Checkpoints(str(directory))
    # Raises if the corpus was replaced, which may have another vocabulary.
    checkpoints.position(step, corpus.read(source).sha256)
    arrays = checkpoints.arrays(step)
    checkpoints.close()
    prefix = "params."
    return Source(
        directory=directory,
        sizes=dataclasses.asdict(source.model),
        lowercase=source.tokenizer.lowercase,
        shapes={
            name.removeprefix(prefix): tuple(shape)
            for name, (shape, _) in arrays.items()
            if name.startswith(prefix)
        },
        unused=(),
        vocabulary=tokenizers.read(corpus_dir, source.tokenizer).content(),
        vocabulary_path=Path(tokenizers.path_in(corpus_dir, source.tokenizer)),
        read=lambda: _read_workdir(directory, step, source),
    )


def _read_workdir(
    directory: Path, step: int, config: ExperimentConfig
) -> dict[str, np.ndarray]:
    mesh = jax.sharding.get_mesh()
    whole = jax.NamedSharding(mesh, jax.P())  # every process needs all parameters
    like = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=whole),
        run_lib.abstract_params(config)[1],
    )
    checkpoints = Checkpoints(str(directory))
    restored = checkpoints.restore(step, {"params": like}, mesh)
    checkpoints.close()
    return parameters.by_name(restored["params"])


def _check_sizes(source: Source, config: ExperimentConfig) -> None:
    ours = dataclasses.asdict(config.model)
    # Dropout may differ, and the tables of positions and tokens may grow.
    free = {"hidden_dropout_prob", "attention_probs_dropout_prob", "initializer_range"}
    free |= {"max_position_embeddings"}
    wrong = [
        f"config.model.{key}={ours[key]!r} (the model has {source.sizes[key]!r})"
        for key in sorted(source.sizes.keys() & ours.keys() - free)
        if source.sizes[key] != ours[key]
    ]
    if wrong:
        raise ConfigError(
            f"{', '.join(wrong)}: {source.directory} has other sizes; set the keys to"
            " them"
        )
    if source.lowercase not in (None, config.tokenizer.lowercase):
        raise ConfigError(
            f"config.tokenizer.lowercase={config.tokenizer.lowercase}, but"
            f" {source.directory} has {source.lowercase}; set the key to that"
        )


def _check_tensors(source: Source, wanted: dict[str, tuple[int, ...]]) -> None:
    """Raises ConfigError if required tensors are missing or shapes do not match."""
    needed = [
        name
        for name in wanted
        if name not in source.shapes and not name.startswith(HEADS)
    ]
    if needed:
        raise ConfigError(
            f"{source.directory} lacks {len(needed)} of the encoder's tensors:"
            f" {vocabulary.some(needed)}"
        )

    def fits(name: str, shape: tuple[int, ...]) -> bool:
        # The number of rows of these tables may differ; it is checked separately.
        first = 1 if name in BY_TOKEN | {POSITION} else 0
        same_rank = len(shape) == len(wanted[name])
        return same_rank and shape[first:] == wanted[name][first:] and 0 not in shape

    wrong = [
        f"{name} is {list(shape)}, expected {list(wanted[name])}"
        for name, shape in source.shapes.items()
        if not fits(name, shape)
    ]
    if wrong:
        raise ConfigError(
            f"{source.directory} does not match the config in {len(wrong)} tensor(s):"
            f" {vocabulary.some(wrong)}"
        )
    num_positions = source.shapes[POSITION][0]
    for key, name in (("vocab_size", WORD), ("max_position_embeddings", POSITION)):
        rows, size = source.shapes[name][0], source.sizes.get(key)
        # A table of tokens may be padded, for example to a multiple of 64.
        is_padded = name == WORD and type(size) is int and 0 < size < rows
        if size not in (None, rows) and not is_padded:
            raise CorruptError(
                f"{source.directory} has {key}={size!r}, but its table has {rows}"
                " rows; fetch it again"
            )
    if num_positions > wanted[POSITION][0]:
        raise ConfigError(
            f"config.model.max_position_embeddings={wanted[POSITION][0]}, but"
            f" {source.directory} has {num_positions}; set the key to"
            f" {num_positions} or more"
        )
