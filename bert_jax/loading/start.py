"""Opens what a new run starts from: its corpus, and the weights or state of a model."""

from collections.abc import Callable
from typing import Protocol

import jax

from bert_jax.config import ExperimentConfig
from bert_jax.data.corpus import corpus as corpus_lib
from bert_jax.data.corpus.corpus import Corpus
from bert_jax.data.tokenizers import tokenizers
from bert_jax.distributed import multihost
from bert_jax.phases import Position
from bert_jax.training.step import TrainState


class Start(Protocol):
    """The model that a new run starts from: `Weights` or a `Branch`."""

    @property
    def step(self) -> int: ...

    @property
    def notes(self) -> tuple[str, ...]: ...

    def first_state(
        self, init: Callable[[], TrainState], corpus: Corpus, mesh: jax.sharding.Mesh
    ) -> tuple[Position, TrainState]: ...


def open_inputs(
    config: ExperimentConfig, is_begun: bool
) -> tuple[Corpus, Start | None]:
    """Opens the corpus, and what config.init_from or config.branch_from names.

    Errors in these keys are reported before a corpus is prepared. Without the keys, the
    run starts from random weights; readers of models are then not imported.

    Args:
      is_begun: whether the run resumes; it then starts from its own checkpoint.
    """
    if not is_begun and config.branch_from:
        from bert_jax.loading import branch

        branch.check(config)
        corpus = find_corpus(config)
        return corpus, branch.open_branch(config, corpus)
    if is_begun or not config.init_from:
        return find_corpus(config), None
    from bert_jax.loading import initialize

    source = initialize.open_source(config)
    if corpus_lib.exists(config.data.corpus_dir):
        corpus = find_corpus(config)
        return corpus, initialize.read(source, config, corpus.tokenizer)
    if config.tokenizer.vocab_file:
        tokenizer = tokenizers.load(config.tokenizer)
    else:
        tokenizer = initialize.parse_tokenizer(source, config.tokenizer)
    weights = initialize.read(source, config, tokenizer)
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
