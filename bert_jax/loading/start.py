"""Opens what a new run starts from: its corpus, and the weights or state of a model."""

import dataclasses
from collections.abc import Callable

import jax

from bert_jax.config import ExperimentConfig
from bert_jax.data.corpus import corpus as corpus_lib
from bert_jax.data.corpus.corpus import Corpus
from bert_jax.data.tokenizers import tokenizers
from bert_jax.distributed import devices
from bert_jax.errors import ConfigError
from bert_jax.loading import branch, initialize
from bert_jax.loading import run as run_lib
from bert_jax.loading.branch import Branch
from bert_jax.loading.initialize import Weights
from bert_jax.loading.run import Run
from bert_jax.model import parameters
from bert_jax.phases import Position
from bert_jax.training import optimizer
from bert_jax.training import step as step_lib
from bert_jax.training.input import find_corpus
from bert_jax.training.step import TrainState

Start = Weights | Branch | None  # None: random weights


def open_inputs(config: ExperimentConfig, is_begun: bool) -> tuple[Corpus, Start]:
    """Opens the corpus, and what config.init_from or config.branch_from names.

    Errors in these keys are reported before a corpus is prepared.

    Args:
      config: the config of the run.
      is_begun: whether the run resumes; it then starts from its own checkpoint.
    """
    if not is_begun and config.branch_from:
        branch.check(config)
        corpus = find_corpus(config)
        return corpus, branch.open_branch(config, corpus)
    if is_begun or not config.init_from:
        return find_corpus(config), None
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


def open_start(config: ExperimentConfig) -> tuple[Run, tuple[str, ...]]:
    """Opens the model that a run starts from, as the run at its first step.

    Its phase is the last one, so that an evaluation can be compared with one of the
    trained model.

    Returns:
      The run, and notes on parameters that the model lacks.

    Raises:
      ConfigError: if the config starts from random weights, or as `open_inputs`.
    """
    if not config.init_from and not config.branch_from:
        raise ConfigError(
            "config.init_from='' names no model; give --config.init_from=MODEL"
        )
    devices.open_local_devices()
    phase_index = len(config.phases) - 1
    mesh = run_lib.set_mesh(config, phase_index)
    corpus, start = open_inputs(config, is_begun=False)
    assert start is not None
    _, init = step_lib.init_state(config, optimizer.make_optimizer(config)[0])
    _, state = first_state(init, start, corpus, mesh)
    step = first_step(0, start)
    return Run(config, corpus, mesh, step, phase_index, state.params), start.notes


def first_step(saved_step: int, start: Start) -> int:
    """Returns the number of steps that the state of a run has when it starts.

    Args:
      saved_step: the step of the run's own newest checkpoint, 0 if there is none.
      start: from `open_inputs`.
    """
    return start.step if isinstance(start, Branch) and not saved_step else saved_step


def first_state(
    init: Callable[[], TrainState],
    start: Start,
    corpus: Corpus,
    mesh: jax.sharding.Mesh,
) -> tuple[Position, TrainState]:
    """Returns the data position and the state that a new run starts from.

    Args:
      init: initializes a state with random weights.
      start: from `open_inputs`.
      corpus: corpus of the run.
      mesh: mesh of the run.
    """
    if isinstance(start, Branch):
        state = start.restore(jax.eval_shape(init), mesh)
        return start.position, state
    state = init()
    if start is not None:
        params = parameters.place(state.params, start.arrays)
        state = dataclasses.replace(state, params=params)
    return Position(corpus.sha256), state
