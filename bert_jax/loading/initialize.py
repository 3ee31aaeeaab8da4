"""The first weights of a run, from a model that was trained before.

config.init_from names it: a directory of `export` or of any Hugging Face BERT with
safetensors, a TF1 checkpoint of google-research/bert, or a workdir of `train`, whose
newest checkpoint is taken. Only weights come from it; the optimizer and the position in
the data begin anew.
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
from bert_jax.errors import ConfigError, DamagedError
from bert_jax.interop import files, google_tf1, huggingface_read
from bert_jax.interop.files import Source
from bert_jax.loading import run as run_lib
from bert_jax.loading import vocabulary
from bert_jax.model import parameters
from bert_jax.model.parameters import path_name

# What a model that was not pretrained to the end may lack: these begin anew.
HEADS = ("bert.pooler.", "transform", "decoder_bias", "next_sentence.")
WORD, POSITION = "bert.embeddings.word", "bert.embeddings.position"
BY_TOKEN = {WORD, "decoder_bias"}  # a row for each token


@dataclasses.dataclass(frozen=True)
class Weights:
    """Weights of a run's model.

    Attributes:
      arrays: float32 by name; what is missing begins anew.
      notes: a line each on what was not taken as it was.
    """

    arrays: dict[str, np.ndarray]
    notes: tuple[str, ...]


def open_source(config: ExperimentConfig) -> Source:
    """Opens the model at config.init_from; reads no weights.

    Raises:
      ConfigError: when there is none, it is damaged, or it is of another kind or size.
    """
    path = _local(config.init_from)
    source = open_workdir(path) if is_workdir(path) else open_directory(path, config)
    _check_sizes(source, config)
    _check_tensors(source, parameter_shapes(config))
    return source


def open_directory(path: Path, config: ExperimentConfig) -> Source:
    """Opens a model in a format of others for a run; as `open_source`, but holds it
    against nothing but its own SHA256SUMS.
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
    except RuntimeError:  # ~nobody
        path = None
    if path is None or "://" in init_from or not init_from.isprintable():
        raise ConfigError(
            f"config.init_from={init_from!r} is not a local path; copy the model here"
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
        f"config.init_from={init_from!r} {problem}; give a Hugging Face directory of a"
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
    """Reads the source's weights and fits them to the run's vocabulary and positions.

    Raises:
      ConfigError: when the vocabularies do not fit, or a file is damaged.
    """
    rows, notes_on_rows = vocabulary.match(source, config, tokenizer)
    wanted = parameter_shapes(config)
    arrays, notes = source.read(), list(source.notes)
    for name, array in arrays.items():
        if not np.isfinite(array).all():
            raise ConfigError(
                f"{source.directory} has NaN or infinity in {name}; take an older"
                " checkpoint of it"
            )
    missing = [name for name in wanted if name not in arrays]
    if missing:
        notes.append(f"not there, begin anew: {vocabulary.some(missing)}")
    if source.unused:
        notes.append(
            f"there, but not of the model: {vocabulary.some(list(source.unused))}"
        )
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
    path = directory / workdir.CONFIG_FILE
    return path.is_file() and {"phases", "optimizer"} <= set(storage.read_json(path))


def open_workdir(directory: Path) -> Source:
    source = workdir.read_config(str(directory))
    assert source is not None, "its config.json was seen"
    corpus_dir = source.data.corpus_dir
    if not corpus.exists(corpus_dir):
        raise ConfigError(
            f"the run in {directory} has its vocabulary in {corpus_dir!r},"
            " where no corpus is; bring it back, or export the run and give that"
        )
    step = integrity.newest_step(str(directory))
    if not step:
        raise ConfigError(f"the run in {directory} has no checkpoint yet; give another")
    for path in integrity.directory_of(str(directory), step).rglob("*"):
        files.refuse_link_outside(path, directory)
    remedy = "python -m bert_jax.export --step={} makes a model to give instead"
    integrity.check(str(directory), step, remedy)
    checkpoints = Checkpoints(str(directory))
    # Another corpus may lie there by now, with another vocabulary.
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
    whole = jax.NamedSharding(mesh, jax.P())  # every process needs all of them
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
    # Dropout is the run's own; the tables of positions and of tokens may grow.
    free = {"hidden_dropout_prob", "attention_probs_dropout_prob", "initializer_range"}
    free |= {"max_position_embeddings"}
    wrong = [
        f"config.model.{key}={ours[key]!r} (there {source.sizes[key]!r})"
        for key in sorted(source.sizes.keys() & ours.keys() - free)
        if source.sizes[key] != ours[key]
    ]
    if wrong:
        raise ConfigError(
            f"{', '.join(wrong)}: {source.directory} is another model; set them so"
        )
    if source.lowercase not in (None, config.tokenizer.lowercase):
        raise ConfigError(
            f"config.tokenizer.lowercase={config.tokenizer.lowercase}, but"
            f" {source.directory} has {source.lowercase}; set it so"
        )


def _check_tensors(source: Source, wanted: dict[str, tuple[int, ...]]) -> None:
    """Raises ConfigError when the encoder is not all there or shapes do not fit."""
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
        # The number of rows of these may differ, and is looked at apart.
        first = 1 if name in BY_TOKEN | {POSITION} else 0
        same_rank = len(shape) == len(wanted[name])
        return same_rank and shape[first:] == wanted[name][first:] and 0 not in shape

    wrong = [
        f"{name}: {list(shape)}, config {list(wanted[name])}"
        for name, shape in source.shapes.items()
        if not fits(name, shape)
    ]
    if wrong:
        raise ConfigError(
            f"{source.directory} does not fit the config in {len(wrong)} tensor(s):"
            f" {vocabulary.some(wrong)}"
        )
    num_positions = source.shapes[POSITION][0]
    for key, name in (("vocab_size", WORD), ("max_position_embeddings", POSITION)):
        rows, said = source.shapes[name][0], source.sizes.get(key)
        # A table of tokens may be padded, to a multiple of 64 for example.
        is_padded = name == WORD and type(said) is int and 0 < said < rows
        if said not in (None, rows) and not is_padded:
            raise DamagedError(
                f"{source.directory} says {key}={said!r}, but its table has {rows}"
                " rows; fetch it again"
            )
    if num_positions > wanted[POSITION][0]:
        raise ConfigError(
            f"config.model.max_position_embeddings={wanted[POSITION][0]}, but"
            f" {source.directory} has {num_positions}; set it so, or higher"
        )
