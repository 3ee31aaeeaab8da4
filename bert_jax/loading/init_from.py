"""Initializes a run from the weights of a trained model.

config.init_from is a directory written by `export`, a Hugging Face BERT with
safetensors or its name on the Hub, a TF1 checkpoint of google-research/bert, or a
workdir of `train`, whose newest checkpoint is read. Only the weights are used; the
optimizer state and the position in the data are those of a new run.

Shapes: V token of the run's vocabulary, S token of the source's.
"""

import dataclasses
import itertools
from collections.abc import Callable

import jax
import numpy as np

from bert_jax.config import ExperimentConfig, TokenizerConfig
from bert_jax.config.validation import Count, build
from bert_jax.data.corpus import corpus
from bert_jax.data.corpus.corpus import Corpus
from bert_jax.data.tokenizers import tokenizers
from bert_jax.errors import ConfigError, CorruptError
from bert_jax.interop.files import Source, SourceTokenizer
from bert_jax.loading import source as source_lib
from bert_jax.loading.new_run import SIZES
from bert_jax.loading.source import WORD, some
from bert_jax.loading.trained_run import parameter_shapes
from bert_jax.model import parameters
from bert_jax.phases import Position
from bert_jax.training.step import TrainState

POSITION = "bert.embeddings.position"
BY_TOKEN = {WORD, "decoder_bias"}  # tables with a row for each token


@dataclasses.dataclass(frozen=True)
class Weights:
    """The initial weights of a run."""

    # float32 parameters by name; missing ones are initialized randomly
    arrays: dict[str, np.ndarray]
    notes: tuple[str, ...]  # a line for each change or omission
    step: int = 0  # the number of steps of the run that they count as

    def first_state(
        self, init: Callable[[], TrainState], corpus: Corpus, mesh: jax.sharding.Mesh
    ) -> tuple[Position, TrainState]:
        """Returns the start of the corpus, and a new state with these weights."""
        state = init()
        params = parameters.place(state.params, self.arrays)
        average = parameters.place(state.average, self.arrays)
        state = dataclasses.replace(state, params=params, average=average)
        return Position(corpus.sha256), state


def describe(init_from: str) -> Source:
    """Returns the sizes and the vocabulary of a model, without tensors."""
    path = source_lib.model_path(init_from, "config.init_from")
    if source_lib.is_workdir(path):
        return source_lib.describe_run(path)[0]
    return source_lib.open_source(path, f"config.init_from={init_from!r}")


def tokenizer_of_corpus(config: ExperimentConfig) -> tokenizers.Tokenizer | None:
    """Returns the tokenizer of config.init_from if a corpus must be prepared with it.

    Returns None if the corpus exists, or the config has a vocabulary file or no model.
    """
    is_prepared = corpus.exists(config.data.corpus_dir)
    if is_prepared or not config.init_from or config.tokenizer.vocab_file:
        return None
    return tokenizer_of(describe(config.init_from), config.tokenizer)


def tokenizer_of(
    source: Source, config: TokenizerConfig, *, any_size: bool = False
) -> tokenizers.Tokenizer:
    """Returns the tokenizer of config.vocab_file, or else of a model."""
    if config.vocab_file:
        return tokenizers.load(config, any_size=any_size)
    opened = source.tokenizer
    if opened is None:
        raise ConfigError(
            f"{source.directory} has no tokenizer; copy its vocab.txt there, or set"
            " config.tokenizer.vocab_file"
        )
    return tokenizers.parse(_vocabulary(opened), config, str(opened.path))


def open_source(config: ExperimentConfig) -> Source:
    """Opens the model at config.init_from without reading its weights."""
    given = f"config.init_from={config.init_from!r}"
    path = source_lib.model_path(config.init_from, "config.init_from")
    source = source_lib.open_source(path, given)
    _check_sizes(source, config)
    wanted = parameter_shapes(config)
    key = "max_position_embeddings"
    num_positions = build(Count, source.sizes[key], f"{source.directory}: {key}")
    if num_positions > wanted[POSITION][0]:
        raise ConfigError(
            f"config.model.max_position_embeddings={wanted[POSITION][0]}, but"
            f" {source.directory} has {num_positions}; set the key to"
            f" {num_positions} or more"
        )
    wanted = wanted | {POSITION: (num_positions, *wanted[POSITION][1:])}
    source_lib.check_tensors(source, wanted, source_lib.HEADS, BY_TOKEN)
    return source


def _check_sizes(source: Source, config: ExperimentConfig) -> None:
    """Compares a model with the config, which another model may have completed."""
    ours = dataclasses.asdict(config.model)
    wrong = [
        f"config.model.{key}={ours[key]!r} (the model has {source.sizes[key]!r})"
        for key in sorted((SIZES & source.sizes.keys()) - {"max_position_embeddings"})
        if source.sizes[key] != ours[key]
    ]
    if wrong:
        raise ConfigError(f"{', '.join(wrong)}: use the values of {source.directory}")
    lowercase = source.tokenizer.lowercase if source.tokenizer else None
    if lowercase not in (None, config.tokenizer.lowercase):
        raise ConfigError(
            f"config.tokenizer.lowercase={config.tokenizer.lowercase}, but"
            f" {source.directory} has {lowercase}; set the key to {lowercase}"
        )


def read(
    source: Source, config: ExperimentConfig, tokenizer: tokenizers.Tokenizer
) -> Weights:
    """Reads weights, adapted to the run's vocabulary and positions."""
    rows, notes_on_rows = _match(source, config, tokenizer)
    wanted = parameter_shapes(config)
    arrays, notes = source_lib.read_finite(source, wanted), list(source.notes)
    missing = [name for name in wanted if name not in arrays]
    if missing:
        notes.append(f"missing, initialized randomly: {some(missing)}")
    if unused := source.unused(wanted):
        notes.append(f"unused tensors: {some(unused)}")
    notes += notes_on_rows
    if rows is not None:
        for name in BY_TOKEN & arrays.keys():
            arrays[name] = _averaged(arrays[name], rows)
    num_positions, (num_wanted, _) = len(arrays[POSITION]), wanted[POSITION]
    if num_positions < num_wanted:
        arrays[POSITION] = np.resize(arrays[POSITION], wanted[POSITION])
        notes.append(f"{num_positions} positions, repeated to make {num_wanted}")
    return Weights(arrays, tuple(notes))


def _vocabulary(opened: SourceTokenizer) -> bytes:
    """Returns the content of a tokenizer file of a corpus."""
    if opened.for_corpora is None:
        raise ConfigError(
            f"config.init_from: the tokenizer of {opened.path} has other rules than"
            " BERT's, for which a corpus cannot be prepared; start from another model"
        )
    return opened.for_corpora


def _match(
    source: Source, config: ExperimentConfig, tokenizer: tokenizers.Tokenizer
) -> tuple[list[np.ndarray] | None, list[str]]:
    """Returns, for each token of the run, the rows of the source to average.

    A token that the source lacks is initialized with the mean of the pieces into which
    the source's tokenizer splits it. Tokens such as [unused0] may be replaced.

    Returns:
      V arrays of ids, or None if all rows are used unchanged and in order; and a line
      for each kind of new or dropped row.
    """
    num_embeddings = source.shapes[WORD][0]
    num_biases = source.shapes.get("decoder_bias", (num_embeddings,))[0]
    num_rows, most = sorted((num_embeddings, num_biases))  # one may be padded
    opened = source.tokenizer
    if opened is None:
        if {num_rows, most} != {len(tokenizer.vocab)}:
            raise ConfigError(
                f"config.tokenizer.vocab_size={len(tokenizer.vocab)}, but"
                f" {source.directory} has {most} word embeddings and no"
                f" {tokenizer.FILE} to match them; copy it there"
            )
        return None, [f"no {tokenizer.FILE} to compare the vocabulary with"]
    content, path = _vocabulary(opened), str(opened.path)
    if opened.path.name != tokenizer.FILE:
        raise ConfigError(
            f"config.tokenizer.kind={config.tokenizer.kind!r}, but {source.directory}"
            f" has a {opened.path.name}; use the model's vocabulary"
        )
    theirs = tokenizers.parse(content, config.tokenizer, path, may_lack_mask=True)
    if num_rows < len(theirs.vocab):
        raise CorruptError(
            f"{path} has {len(theirs.vocab)} tokens, but {source.directory} has"
            f" {num_rows} rows for them; download both again"
        )
    notes, rows = [], [np.array([i]) for i in range(len(tokenizer.vocab))]
    if new := _new_tokens(tokenizer, theirs, path):
        assert isinstance(theirs, tokenizers.WordPiece)
        names = [tokenizer.vocab[i] for i in new]
        for i, ids in zip(new, theirs.pieces_of(names), strict=True):
            rows[i] = ids
        notes.append(
            f"{len(new)} new token(s), each the mean of its pieces: {some(names)}"
        )
    if most > len(theirs.vocab):
        notes.append(f"dropped {most - len(theirs.vocab)} rows without a token")
    return (rows if notes else None), notes


def _new_tokens(
    tokenizer: tokenizers.Tokenizer, theirs: tokenizers.Tokenizer, path: str
) -> list[int]:
    """Returns the ids of the run's tokens that the source lacks.

    Raises ConfigError unless all others, except for tokens such as [unused0] of the
    source, have the same ids in both.
    """
    if theirs.digest == tokenizer.digest:
        return []
    pairs = itertools.zip_longest(theirs.vocab, tokenizer.vocab)
    new = [(i, was, now) for i, (was, now) in enumerate(pairs) if was != now]
    difference = "the two split text differently"
    if isinstance(tokenizer, tokenizers.WordPiece):
        wrong = [each for each in new if not _may_become(*each[1:])]
        if not wrong:
            return [i for i, _, _ in new]
        i, was, now = wrong[0]
        difference = f"token {i + 1} is {was!r} in the model and {now!r} in the run"
    raise ConfigError(
        f"{path} is neither the run's vocabulary nor the beginning of it: {difference};"
        " set config.tokenizer.vocab_file to it, or to a copy with lines added at the"
        " end, and prepare the corpus again"
    )


def _may_become(was: str | None, now: str | None) -> bool:
    is_unused = was is None or not was or was.startswith("[unused")
    return is_unused and now is not None


def _averaged(table: np.ndarray, rows: list[np.ndarray]) -> np.ndarray:
    """Returns float32[V, ...], means of the rows of a table [S, ...]."""
    # A single row is copied, because a sum would turn -0 into 0.
    return np.stack(
        [table[ids[0]] if len(ids) == 1 else table[ids].mean(axis=0) for ids in rows]
    )
