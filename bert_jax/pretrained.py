"""The first weights of a run, from a model that was trained before.

config.init_from names a directory: of `export` or of any Hugging Face BERT with
safetensors, or a workdir of `train`, whose newest checkpoint is taken. Only weights
come from it; the optimizer and the position in the data begin anew.
"""

import dataclasses
from pathlib import Path
from typing import Any

import jax
import numpy as np

from bert_jax import optim, runs, steps
from bert_jax.checkpoint import Checkpoints, newest_step
from bert_jax.config import ConfigError, ExperimentConfig
from bert_jax.data import corpus, tokenizers
from bert_jax.interop import huggingface, weight_names
from bert_jax.model import path_name

# Hugging Face's config.json calls them as our config.model does.
SAME_IN_BOTH = (
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "hidden_act",
    "type_vocab_size",
    "layer_norm_eps",
)
# What a model that was not pretrained to the end may lack: these begin anew.
HEADS = ("bert.pooler.", "transform", "decoder_bias", "next_sentence.")
POSITION = "bert.embeddings.position"


@dataclasses.dataclass(frozen=True)
class Weights:
    """Weights of a run's model.

    Attributes:
      arrays: float32 by name; what is missing begins anew.
      notes: a line each on what was not taken as it was.
    """

    arrays: dict[str, np.ndarray]
    notes: tuple[str, ...]


def read(
    config: ExperimentConfig, tokenizer: tokenizers.Tokenizer, mesh: jax.sharding.Mesh
) -> Weights:
    """Reads the weights at config.init_from and holds them against the config.

    Raises:
      ConfigError: when there are none, or they are of another model or vocabulary.
    """
    directory = check(config)
    wanted = _shapes(config)
    if _is_workdir(directory):
        found, unused, vocabulary = _of_workdir(directory, mesh)
    else:
        found, unused, vocabulary = _of_huggingface(directory, wanted)
    notes = _check_vocabulary(vocabulary, found, config, tokenizer)
    found, repeated = _with_positions(found, wanted)
    notes += repeated
    _check_shapes(directory, found, wanted)
    missing = [name for name in wanted if name not in found]
    needed = [name for name in missing if not name.startswith(HEADS)]
    if needed:
        raise ConfigError(
            f"{directory} lacks {len(needed)} of the encoder's {len(wanted)} tensors:"
            f" {_some(needed)}"
        )
    if missing:
        notes.append(f"not there, begin anew: {_some(missing)}")
    if unused:
        notes.append(f"there, but not of the model: {_some(unused)}")
    return Weights(found, tuple(notes))


def check(config: ExperimentConfig) -> Path:
    """Returns the directory config.init_from; reads no weights.

    Raises:
      ConfigError: when there is no model, or one of another kind or size.
    """
    directory = Path(config.init_from)
    path = directory / "config.json"
    if not path.is_file():
        raise ConfigError(
            f"config.init_from={config.init_from!r} has no config.json; give a Hugging"
            " Face directory of a BERT, or a workdir of python -m bert_jax.train"
        )
    if _is_workdir(directory):
        source = runs.read_config(str(directory))
        assert source is not None, "its config.json was seen"
        theirs = dataclasses.asdict(source.model)
    else:
        theirs = huggingface.read_json(path)
        _check_kind(directory, theirs, config)
    for key in SAME_IN_BOTH:
        ours = getattr(config.model, key)
        if theirs.get(key, ours) != ours:
            raise ConfigError(
                f"config.model.{key}={ours!r}, but {path} says {theirs[key]!r};"
                " set it so"
            )
    return directory


def _is_workdir(directory: Path) -> bool:
    return "phases" in huggingface.read_json(directory / "config.json")


def _check_kind(
    directory: Path, theirs: dict[str, Any], config: ExperimentConfig
) -> None:
    for key, only in (("model_type", "bert"), ("position_embedding_type", "absolute")):
        if theirs.get(key, only) != only:
            raise ConfigError(
                f"{directory / 'config.json'} has {key}={theirs[key]!r}; this is for"
                f" {only!r} alone"
            )
    path = directory / "tokenizer_config.json"
    lowercase = config.tokenizer.lowercase
    if path.is_file():
        was = huggingface.read_json(path).get("do_lower_case", lowercase)
        if was != lowercase:
            raise ConfigError(
                f"config.tokenizer.lowercase={lowercase}, but {path} has"
                f" do_lower_case={was}; set it so"
            )


def place(params: Any, weights: Weights) -> Any:
    """Returns the parameters with the weights in their places, laid out as they are."""

    def replace(path: tuple[Any, ...], leaf: jax.Array) -> jax.Array:
        array = weights.arrays.get(path_name(path))
        return leaf if array is None else jax.device_put(array, leaf.sharding)

    return jax.tree_util.tree_map_with_path(replace, params)


def _shapes(config: ExperimentConfig) -> dict[str, tuple[int, ...]]:
    tx, _ = optim.make_optimizer(config)
    _, init = steps.init_state(config, tx)
    leaves, _ = jax.tree_util.tree_flatten_with_path(jax.eval_shape(init).params)
    return {path_name(path): leaf.shape for path, leaf in leaves}


def _of_huggingface(
    directory: Path, wanted: dict[str, tuple[int, ...]]
) -> tuple[dict[str, np.ndarray], list[str], Path]:
    """Returns tensors by our names, names of others, and where the vocabulary is."""
    tensors = huggingface.read_weights(directory)
    names = {weight_names.huggingface_name(name) for name in wanted}
    unused = sorted(tensors.keys() - names)
    return weight_names.from_huggingface(tensors, wanted), unused, directory


def _of_workdir(
    directory: Path, mesh: jax.sharding.Mesh
) -> tuple[dict[str, np.ndarray], list[str], Path]:
    """As `_of_huggingface`."""
    source = runs.read_config(str(directory))
    assert source is not None, "its config.json was seen"
    vocabulary = Path(source.data.corpus_dir)
    if not (vocabulary / corpus.MANIFEST).is_file():
        raise ConfigError(
            f"the run in {directory} has its vocabulary in {source.data.corpus_dir!r},"
            " where no corpus is; bring it back, or export the run and give that"
        )
    step = newest_step(str(directory))
    if not step:
        raise ConfigError(f"config.init_from={str(directory)!r} has no checkpoint yet")
    tx, _ = optim.make_optimizer(source)
    _, init = steps.init_state(source, tx)
    checkpoints = Checkpoints(str(directory))
    state = checkpoints.restore(step, jax.eval_shape(init), mesh)
    checkpoints.close()
    leaves, _ = jax.tree_util.tree_flatten_with_path(state.params)
    found = {path_name(path): np.asarray(jax.device_get(x)) for path, x in leaves}
    return found, [], vocabulary


def _check_vocabulary(
    directory: Path,
    found: dict[str, np.ndarray],
    config: ExperimentConfig,
    tokenizer: tokenizers.Tokenizer,
) -> list[str]:
    """Returns a note when a vocabulary of the same size is not there to compare."""
    path = directory / tokenizer.FILE
    is_there = path.is_file()
    if is_there and path.read_bytes().split() != tokenizer.content().split():
        raise ConfigError(
            f"{path} is not the vocabulary of the corpus in"
            f" {config.data.corpus_dir!r}; prepare one with"
            f" config.tokenizer.vocab_file={str(path)!r}"
        )
    num_rows = len(found.get("bert.embeddings.word", ()))
    if num_rows not in (0, config.tokenizer.vocab_size):
        raise ConfigError(
            f"config.tokenizer.vocab_size={config.tokenizer.vocab_size}, but the model"
            f" at config.init_from has {num_rows} word embeddings; use its vocabulary"
        )
    return [] if is_there else [f"no {path.name} to compare the vocabulary with"]


def _with_positions(
    found: dict[str, np.ndarray], wanted: dict[str, tuple[int, ...]]
) -> tuple[dict[str, np.ndarray], list[str]]:
    """Repeats the position embeddings where the config has more of them."""
    table, (num_wanted, _) = found.get(POSITION), wanted[POSITION]
    if table is None or table.ndim != 2 or not 0 < len(table) < num_wanted:
        return found, []
    repeats = -(-num_wanted // len(table))
    longer = np.tile(table, (repeats, 1))[:num_wanted]
    note = f"{len(table)} positions, repeated to make {num_wanted}"
    return found | {POSITION: longer}, [note]


def _check_shapes(
    directory: Path,
    found: dict[str, np.ndarray],
    wanted: dict[str, tuple[int, ...]],
) -> None:
    wrong = [
        f"{name}: {list(array.shape)}, config {list(wanted[name])}"
        for name, array in found.items()
        if array.shape != wanted[name]
    ]
    if wrong:
        raise ConfigError(
            f"{directory} does not fit the config in {len(wrong)} tensor(s):"
            f" {_some(wrong)}"
        )


def _some(items: list[str]) -> str:
    more = f" and {len(items) - 3} more" if len(items) > 3 else ""
    return ", ".join(items[:3]) + more
