"""Initializes a run from the weights of a trained model.

config.init_from is a directory written by `export`, a Hugging Face BERT with
safetensors or its name on the Hub, a TF1 checkpoint of google-research/bert, or a
workdir of `train`, whose newest checkpoint is read. Only the weights are used; the
optimizer state and the position in the data are those of a new run.
"""

import dataclasses
from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np

from bert_jax.config import ExperimentConfig, TokenizerConfig
from bert_jax.data.corpus import corpus
from bert_jax.data.corpus.corpus import Corpus
from bert_jax.data.tokenizers import tokenizers
from bert_jax.errors import ConfigError, CorruptError
from bert_jax.interop import google_tf1
from bert_jax.interop.files import Source
from bert_jax.loading import completion, vocabulary
from bert_jax.loading import run as run_lib
from bert_jax.loading import source as source_lib
from bert_jax.model import parameters
from bert_jax.model.parameters import path_name
from bert_jax.phases import Position
from bert_jax.training.step import TrainState

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
      step: the number of steps of the run that they count as.
    """

    arrays: dict[str, np.ndarray]
    notes: tuple[str, ...]
    step: int = 0

    def first_state(
        self, init: Callable[[], TrainState], corpus: Corpus, mesh: jax.sharding.Mesh
    ) -> tuple[Position, TrainState]:
        """Returns the start of the corpus, and a new state with these weights."""
        state = init()
        params = parameters.place(state.params, self.arrays)
        return Position(corpus.sha256), dataclasses.replace(state, params=params)


def describe(init_from: str) -> Source:
    """Returns the sizes and the vocabulary of a model, without tensors."""
    path = source_lib.model_path(init_from, "config.init_from")
    found = source_lib.describe(path)
    if found is None:
        raise ConfigError(_no_source(init_from, path))
    return found


def tokenizer_of_corpus(config: ExperimentConfig) -> tokenizers.Tokenizer | None:
    """Returns the tokenizer of config.init_from if a corpus must be prepared with it.

    Returns None if the corpus exists, or the config has a vocabulary file or no model.
    """
    is_prepared = corpus.exists(config.data.corpus_dir)
    if is_prepared or not config.init_from or config.tokenizer.vocab_file:
        return None
    return parse_tokenizer(describe(config.init_from), config.tokenizer)


def parse_tokenizer(source: Source, config: TokenizerConfig) -> tokenizers.Tokenizer:
    """Returns the tokenizer of a model."""
    vocabulary.check_rules(source)
    if source.vocabulary is None:
        raise ConfigError(
            f"{source.directory} has no tokenizer; copy its vocab.txt there, or set"
            " config.tokenizer.vocab_file"
        )
    return tokenizers.parse(source.vocabulary, config, str(source.vocabulary_path))


def open_source(config: ExperimentConfig) -> Source:
    """Opens the model at config.init_from without reading its weights."""
    path = source_lib.model_path(config.init_from, "config.init_from")
    source = open_directory(path, config)
    _check_sizes(source, config)
    wanted = parameter_shapes(config)
    source_lib.check_tensors(source, wanted, HEADS, BY_TOKEN | {POSITION})
    _check_rows(source, wanted)
    return source


def open_directory(path: Path, config: ExperimentConfig) -> Source:
    """Opens a model to initialize from; verifies only its own digests."""
    names = parameter_shapes(config)
    found = source_lib.open_source(path, lambda _: names)
    if found is None:
        raise ConfigError(_no_source(config.init_from, path))
    return found[0]


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
        " BERT, its name on the Hub, a TF1 checkpoint with bert_config.json, or a"
        " workdir of python -m bert_jax.train"
    )


def parameter_shapes(config: ExperimentConfig) -> dict[str, tuple[int, ...]]:
    """Returns the shape of every parameter of the run's model, by name."""
    _, params = run_lib.abstract_params(config)
    leaves, _ = jax.tree_util.tree_flatten_with_path(params)
    return {path_name(path): leaf.shape for path, leaf in leaves}


def read(
    source: Source, config: ExperimentConfig, tokenizer: tokenizers.Tokenizer
) -> Weights:
    """Reads weights, adapted to the run's vocabulary and positions."""
    rows, notes_on_rows = vocabulary.match(source, config, tokenizer)
    wanted = parameter_shapes(config)
    arrays, notes = source_lib.read_finite(source), list(source.notes)
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


def _check_sizes(source: Source, config: ExperimentConfig) -> None:
    ours = dataclasses.asdict(config.model)
    # The tables of positions and tokens may grow.
    free = {*completion.SETTINGS, "max_position_embeddings"}
    wrong = [
        f"config.model.{key}={ours[key]!r} (the model has {source.sizes[key]!r})"
        for key in sorted(source.sizes.keys() & ours.keys() - free)
        if source.sizes[key] != ours[key]
    ]
    if wrong:
        raise ConfigError(f"{', '.join(wrong)}: use the values of {source.directory}")
    if source.lowercase not in (None, config.tokenizer.lowercase):
        raise ConfigError(
            f"config.tokenizer.lowercase={config.tokenizer.lowercase}, but"
            f" {source.directory} has {source.lowercase}; set the key to"
            f" {source.lowercase}"
        )


def _check_rows(source: Source, wanted: dict[str, tuple[int, ...]]) -> None:
    """Raises ConfigError if the table of tokens or positions has a wrong size."""
    num_positions = source.shapes[POSITION][0]
    for key, name in (("vocab_size", WORD), ("max_position_embeddings", POSITION)):
        rows, size = source.shapes[name][0], source.sizes.get(key)
        # A table of tokens may be padded, for example to a multiple of 64.
        is_padded = name == WORD and type(size) is int and 0 < size < rows
        if size not in (None, rows) and not is_padded:
            raise CorruptError(
                f"{source.directory} has {key}={size!r}, but its table has {rows}"
                " rows; download it again"
            )
    if num_positions > wanted[POSITION][0]:
        raise ConfigError(
            f"config.model.max_position_embeddings={wanted[POSITION][0]}, but"
            f" {source.directory} has {num_positions}; set the key to"
            f" {num_positions} or more"
        )
