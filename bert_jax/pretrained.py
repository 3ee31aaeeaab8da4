"""The first weights of a run, from a model that was trained before.

config.init_from names it: a directory of `export` or of any Hugging Face BERT with
safetensors, a TF1 checkpoint of google-research/bert, or a workdir of `train`, whose
newest checkpoint is taken. Only weights come from it; the optimizer and the position in
the data begin anew.

Shapes: V piece of the run's vocabulary, S of the source's, D hidden.
"""

import dataclasses
from pathlib import Path
from typing import Any

import jax
import numpy as np

from bert_jax import runs
from bert_jax.checkpoint import Checkpoints, newest_step
from bert_jax.config import ConfigError, ExperimentConfig
from bert_jax.data import corpus, tokenizers
from bert_jax.interop import google_tf1, huggingface, model_directory
from bert_jax.interop.model_directory import Source
from bert_jax.model import path_name

# What a model that was not pretrained to the end may lack: these begin anew.
HEADS = ("bert.pooler.", "transform", "decoder_bias", "next_sentence.")
WORD, POSITION = "bert.embeddings.word", "bert.embeddings.position"
BY_TOKEN = (WORD, "decoder_bias")  # a row for each token


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
    if "://" in config.init_from:
        raise ConfigError(
            f"config.init_from={config.init_from!r} is not a local path; copy it here"
        )
    path = Path(config.init_from).expanduser()
    names = parameter_shapes(config)
    tokenizer_file = Path(tokenizers.path_in("", config.tokenizer)).name
    if _is_workdir(path):
        source = _open_workdir(path)
    elif google_tf1.is_source(path):
        model_directory.verify_digests(path if path.is_dir() else path.parent)
        source = google_tf1.open_source(path, names, tokenizer_file)
    elif (path / "config.json").is_file():
        model_directory.verify_digests(path)
        source = huggingface.open_source(path, names, tokenizer_file)
    else:
        raise ConfigError(
            f"config.init_from={config.init_from!r} has no config.json; give a Hugging"
            " Face directory of a BERT, a TF1 checkpoint with bert_config.json, or a"
            " workdir of python -m bert_jax.train"
        )
    _check_sizes(source, config)
    _check_tensors(source, names)
    return source


def parameter_shapes(config: ExperimentConfig) -> dict[str, tuple[int, ...]]:
    """Returns the shape of every parameter of the run's model, by name."""
    _, params = runs.abstract_params(config)
    leaves, _ = jax.tree_util.tree_flatten_with_path(params)
    return {path_name(path): leaf.shape for path, leaf in leaves}


def check_vocabulary(source: Source, config: ExperimentConfig) -> None:
    """Holds config.tokenizer.vocab_file against the source's vocabulary.

    Raises:
      ConfigError: when they do not fit.
    """
    _rows(source, config, tokenizers.load(config.tokenizer))


def read(
    source: Source, config: ExperimentConfig, tokenizer: tokenizers.Tokenizer
) -> Weights:
    """Reads the source's weights and fits them to the run's vocabulary and positions.

    Raises:
      ConfigError: when the vocabularies do not fit, or a file is damaged.
    """
    rows = _rows(source, config, tokenizer)
    wanted = parameter_shapes(config)
    arrays, notes = source.read(), list(source.notes)
    missing = [name for name in wanted if name not in arrays]
    if missing:
        notes.append(f"not there, begin anew: {_some(missing)}")
    if source.unused:
        notes.append(f"there, but not of the model: {_some(list(source.unused))}")
    if source.vocabulary is None:
        notes.append(f"no {source.vocabulary_path.name} to compare the vocabulary with")
    if rows is not None:
        notes += _tell_of_rows(rows, len(arrays[WORD]), tokenizer)
        for name in BY_TOKEN:
            if name in arrays:
                arrays[name] = _averaged(arrays[name], rows)
    num_positions, (num_wanted, _) = len(arrays[POSITION]), wanted[POSITION]
    if num_positions < num_wanted:
        repeats = -(-num_wanted // num_positions)
        arrays[POSITION] = np.tile(arrays[POSITION], (repeats, 1))[:num_wanted]
        notes.append(f"{num_positions} positions, repeated to make {num_wanted}")
    return Weights(arrays, tuple(notes))


def by_name(params: Any) -> dict[str, np.ndarray]:
    """Returns a tree of parameters as arrays by name."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(params)
    return {path_name(path): np.asarray(jax.device_get(x)) for path, x in leaves}


def place(params: Any, arrays: dict[str, np.ndarray]) -> Any:
    """Returns the parameters with arrays in the places of their names."""

    def replace(path: tuple[Any, ...], leaf: jax.Array) -> jax.Array:
        array = arrays.get(path_name(path))
        return leaf if array is None else jax.device_put(array, leaf.sharding)

    return jax.tree_util.tree_map_with_path(replace, params)


def _is_workdir(directory: Path) -> bool:
    path = directory / runs.CONFIG_FILE
    return path.is_file() and "phases" in model_directory.read_json(path)


def _open_workdir(directory: Path) -> Source:
    source = runs.read_config(str(directory))
    assert source is not None, "its config.json was seen"
    corpus_dir = source.data.corpus_dir
    if not corpus.exists(corpus_dir):
        raise ConfigError(
            f"the run in {directory} has its vocabulary in {corpus_dir!r},"
            " where no corpus is; bring it back, or export the run and give that"
        )
    step = newest_step(str(directory))
    if not step:
        raise ConfigError(f"config.init_from={str(directory)!r} has no checkpoint yet")
    for path in (directory / "checkpoints" / str(step)).rglob("*"):
        model_directory.refuse_link_outside(path, directory)
    checkpoints = Checkpoints(str(directory))
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
    _, like = runs.abstract_params(config)
    checkpoints = Checkpoints(str(directory))
    restored = checkpoints.restore(step, {"params": like}, jax.sharding.get_mesh())
    checkpoints.close()
    return by_name(restored["params"])


def _check_sizes(source: Source, config: ExperimentConfig) -> None:
    ours = dataclasses.asdict(config.model)
    # Dropout is the run's own; the tables of positions and of tokens may grow.
    free = {"hidden_dropout_prob", "attention_probs_dropout_prob", "initializer_range"}
    for key in source.sizes.keys() & ours.keys() - free - {"max_position_embeddings"}:
        if source.sizes[key] != ours[key]:
            raise ConfigError(
                f"config.model.{key}={ours[key]!r}, but {source.directory} has"
                f" {source.sizes[key]!r}; set it so"
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
            f" {_some(needed)}"
        )

    def fits(name: str, shape: tuple[int, ...]) -> bool:
        # The number of rows of these may differ, and is looked at apart.
        first = 1 if name in (*BY_TOKEN, POSITION) else 0
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
            f" {_some(wrong)}"
        )
    num_positions = source.shapes[POSITION][0]
    if num_positions > wanted[POSITION][0]:
        raise ConfigError(
            f"config.model.max_position_embeddings={wanted[POSITION][0]}, but"
            f" {source.directory} has {num_positions}; set it so, or higher"
        )


def _rows(
    source: Source, config: ExperimentConfig, tokenizer: tokenizers.Tokenizer
) -> list[np.ndarray] | None:
    """Returns for each token of the run the source's rows that its own is the mean of.

    None where they are the same one by one. A token that the source lacks is the mean
    of the pieces that the source makes of it; [unused0] and the like may be replaced.

    Raises:
      ConfigError: when a token of the source is another, or missing.
    """
    num_rows = source.shapes[WORD][0]
    if source.vocabulary is None:
        if num_rows != len(tokenizer.vocab):
            raise ConfigError(
                f"config.tokenizer.vocab_size={len(tokenizer.vocab)}, but"
                f" {source.directory} has {num_rows} word embeddings and no"
                f" {source.vocabulary_path.name} to tell which is which; bring it there"
            )
        return None
    path = str(source.vocabulary_path)
    if source.vocabulary_path.name != tokenizer.FILE:
        raise ConfigError(
            f"config.tokenizer.kind={config.tokenizer.kind!r}, but {source.directory}"
            f" has a {source.vocabulary_path.name}; use the model's vocabulary"
        )
    theirs = tokenizers.parse(source.vocabulary, config.tokenizer, path)
    bias_rows = source.shapes.get("decoder_bias", (num_rows,))[0]
    if min(num_rows, bias_rows) < len(theirs.vocab):
        raise ConfigError(
            f"{path} has {len(theirs.vocab)} tokens, but {source.directory} has"
            f" {min(num_rows, bias_rows)} rows for them; fetch both again"
        )
    if theirs.digest == tokenizer.digest:
        return None if num_rows == len(theirs.vocab) else _same(len(theirs.vocab))
    if not _extends(tokenizer, theirs):
        raise ConfigError(
            f"{path} is not the vocabulary of the corpus in"
            f" {config.data.corpus_dir!r}, nor its beginning; prepare one with"
            f" config.tokenizer.vocab_file={path!r}, or with that and lines more"
        )
    return _extension(tokenizer, theirs)


def _same(num_tokens: int) -> list[np.ndarray]:
    return [np.array([i]) for i in range(num_tokens)]


def _extends(tokenizer: tokenizers.Tokenizer, theirs: tokenizers.Tokenizer) -> bool:
    """Returns whether the tokens of the source are where they were."""
    if not isinstance(tokenizer, tokenizers.WordPiece):
        return False
    pairs = zip(theirs.vocab, tokenizer.vocab, strict=False)
    return len(tokenizer.vocab) >= len(theirs.vocab) and all(
        was == now or was.startswith("[unused") for was, now in pairs
    )


def _extension(
    tokenizer: tokenizers.Tokenizer, theirs: tokenizers.Tokenizer
) -> list[np.ndarray]:
    assert isinstance(theirs, tokenizers.WordPiece)
    rows = _same(len(theirs.vocab))
    padded = (*theirs.vocab, *[None] * (len(tokenizer.vocab) - len(rows)))
    new = [i for i, token in enumerate(tokenizer.vocab) if token != padded[i]]
    pieces = theirs.pieces_of([tokenizer.vocab[i] for i in new])
    rows += [np.zeros(0, np.int64)] * (len(tokenizer.vocab) - len(rows))
    for i, ids in zip(new, pieces, strict=True):
        rows[i] = ids
    return rows


def _averaged(table: np.ndarray, rows: list[np.ndarray]) -> np.ndarray:
    """Returns float32[V, ...] of a table [S, ...]: the means of its rows."""
    # A mean of one is the row itself, to the bit.
    return np.stack([table[ids].mean(axis=0) for ids in rows])


def _tell_of_rows(
    rows: list[np.ndarray], num_rows: int, tokenizer: tokenizers.Tokenizer
) -> list[str]:
    new = [
        tokenizer.vocab[i] for i, ids in enumerate(rows) if len(ids) != 1 or ids[0] != i
    ]
    notes = []
    if new:
        notes.append(
            f"{len(new)} new token(s), each the mean of its pieces: {_some(new)}"
        )
    elif num_rows > len(rows):
        notes.append(f"{num_rows - len(rows)} rows of no token are left out")
    return notes


def _some(items: list[str]) -> str:
    more = f" and {len(items) - 3} more" if len(items) > 3 else ""
    return ", ".join(items[:3]) + more
