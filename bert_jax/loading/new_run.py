"""Completes the config of a new run, and opens what the run starts from.

With config.init_from, the keys of config.model (except for SETTINGS) and of
config.tokenizer are those of the model, whatever the config file has. A flag that
contradicts the model is an error. A model that was trained without dropout continues
without it, unless a flag sets it. Readers of models are imported only by runs that
start from one.
"""

import dataclasses
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

import ml_collections

from bert_jax import config as config_lib
from bert_jax.checkpoint import workdir as workdir_lib
from bert_jax.config import ExperimentConfig, ModelConfig, TokenizerConfig
from bert_jax.data.corpus import corpus as corpus_lib
from bert_jax.data.corpus.corpus import Corpus
from bert_jax.data.tokenizers import tokenizers
from bert_jax.distributed import multihost
from bert_jax.errors import ConfigError

if TYPE_CHECKING:
    from bert_jax.loading.branch import Branch
    from bert_jax.loading.init_from import Weights

    Start = Weights | Branch

DROPOUT = ("hidden_dropout_prob", "attention_probs_dropout_prob")
# Keys of config.model that are settings of the training, not of the model.
SETTINGS = (*DROPOUT, "initializer_range")
SIZES = {field.name for field in dataclasses.fields(ModelConfig)} - {*SETTINGS}


def complete(
    values: ml_collections.ConfigDict,
    given: Collection[str] = (),
    workdir: str | None = None,
) -> ExperimentConfig:
    """Builds the config of a run from the values of its config file and flags.

    A model of the Hugging Face Hub is downloaded, and config.init_from names its
    commit. A run whose config is in `workdir` keeps its values; one with a checkpoint
    needs the model no more. Flags set the `given` keys, such as "model.hidden_size".
    """
    path = values.get("init_from")
    if not isinstance(path, str) or not path:
        return config_lib.from_config_dict(values)
    from bert_jax.loading import source as source_lib

    completed: Any = values.to_dict()
    begun = workdir_lib.read_config(workdir) if workdir else None
    key = "config.init_from"
    if begun and source_lib.is_pinned_as(path, begun.init_from, key):
        path = begun.init_from
        found = _values(dataclasses.asdict(begun.model), begun.tokenizer)
    else:
        path = source_lib.pinned(path, key)
        found = _values_of_model(path, values)
        _check_given(values, given, found, path)
    completed["init_from"] = path
    for key in found.keys() - given:
        section, _, name = key.partition(".")
        if isinstance(completed.get(section), dict):  # otherwise, an error follows
            completed[section][name] = found[key]
    return config_lib.from_config_dict(completed)


def _check_given(
    values: Any, given: Collection[str], found: dict[str, Any], path: str
) -> None:
    """Raises ConfigError if a flag contradicts the model; positions may be added."""
    for key in sorted(found.keys() & given):
        section, _, name = key.partition(".")
        value, needed = values[section][name], found[key]
        is_longer = (
            name == "max_position_embeddings"
            and isinstance(needed, int)  # a file may have any type
            and value > needed
        )
        if value != needed and not is_longer and name not in DROPOUT:
            raise ConfigError(
                f"config.{key}={value!r}, but config.init_from={path} needs"
                f" {needed!r}; remove the flag"
            )


def _values(sizes: dict[str, Any], tokenizer: TokenizerConfig) -> dict[str, Any]:
    return {
        **{f"model.{name}": sizes[name] for name in SIZES & sizes.keys()},
        **{f"model.{name}": 0.0 for name in DROPOUT if sizes.get(name) == 0},
        "tokenizer.kind": tokenizer.kind,
        "tokenizer.vocab_size": tokenizer.vocab_size,
        "tokenizer.lowercase": tokenizer.lowercase,
    }


def _values_of_model(path: str, values: Any) -> dict[str, Any]:
    """Returns the values of the model by config key.

    The number of tokens is that of config.tokenizer.vocab_file, if it is given. The
    values of the config are used for what the model does not record.
    """
    from bert_jax.loading import init_from

    source = init_from.describe(path)
    given = values.get("tokenizer")
    config = config_lib.build(TokenizerConfig, given, "config.tokenizer")
    opened = source.tokenizer
    if opened and opened.for_corpora is not None:
        config = dataclasses.replace(config, kind=opened.kind)
    if opened and opened.lowercase is not None:
        config = dataclasses.replace(config, lowercase=opened.lowercase)
    vocab_size = len(init_from.tokenizer_of(source, config, any_size=True).vocab)
    return _values(source.sizes, dataclasses.replace(config, vocab_size=vocab_size))


def open_inputs(
    config: ExperimentConfig, is_begun: bool
) -> "tuple[Corpus, Start | None]":
    """Opens the corpus, and what config.init_from or config.branch_from names.

    Errors in these keys are reported before a corpus is prepared. Without the keys, the
    run starts from random weights, and one that `is_begun` from its own checkpoint.
    """
    if not is_begun and config.branch_from:
        from bert_jax.loading import branch

        branch.check(config)
        corpus = find_corpus(config)
        return corpus, branch.open_branch(config, corpus)
    if is_begun or not config.init_from:
        return find_corpus(config), None
    from bert_jax.loading import init_from

    source = init_from.open_source(config)
    if corpus_lib.exists(config.data.corpus_dir):
        corpus = find_corpus(config)
        return corpus, init_from.read(source, config, corpus.tokenizer)
    tokenizer = init_from.tokenizer_of(source, config.tokenizer)
    weights = init_from.read(source, config, tokenizer)
    return find_corpus(config, tokenizer), weights


def find_corpus(
    config: ExperimentConfig, tokenizer: tokenizers.Tokenizer | None = None
) -> Corpus:
    """Opens the corpus, the same one in every process; process 0 may prepare it."""
    directory = config.data.corpus_dir

    def find() -> Corpus:
        if multihost.is_first() and not corpus_lib.exists(directory):
            # Most runs read a corpus that exists.
            from bert_jax.data.corpus import build

            return build.find_corpus(config, tokenizer)
        multihost.wait_for(lambda: corpus_lib.exists(directory))
        return corpus_lib.open_existing(config)

    corpus = multihost.first_then_others("corpus", find)
    multihost.check_same(
        "corpus digest",
        corpus.sha256,
        f"config.data.corpus_dir={directory!r} holds different corpora on"
        " different hosts; use a directory that all hosts share",
    )
    return corpus
