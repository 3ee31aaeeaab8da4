"""Opens the corpus of a run, and yields its training batches on the devices."""

import itertools
from collections.abc import Iterator

import jax

from bert_jax.config import ExperimentConfig
from bert_jax.data.batches import pipeline
from bert_jax.data.corpus import corpus as corpus_lib
from bert_jax.data.corpus.corpus import Corpus
from bert_jax.data.tokenizers import tokenizers
from bert_jax.distributed import mesh as mesh_lib
from bert_jax.distributed import multihost, sharding
from bert_jax.phases import Skips, runs_of_batches
from bert_jax.training.step import Batch


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


def training_batches(
    corpus: Corpus,
    config: ExperimentConfig,
    mesh: jax.sharding.Mesh,
    first_step: int,
    skips: Skips,
) -> Iterator[tuple[int, int, Batch]]:
    """Yields (step, phase, batch) for every step after `first_step`.

    Each process reads the rows of its own devices of the mesh. A batch is on the
    devices and has the shapes of `pipeline.batch_shapes`. The next batch is transferred
    while a step runs.
    """
    host, num_hosts = mesh_lib.host_part(mesh, jax.process_index())

    def placed() -> Iterator[tuple[int, Batch]]:
        for phase_index, first_batch, num_batches in runs_of_batches(
            config, first_step, skips
        ):
            batches = pipeline.batches(
                corpus,
                config,
                split="train",
                seed=config.seed,
                phase_index=phase_index,
                first_step=first_batch,
                host=host,
                num_hosts=num_hosts,
            )
            for batch in itertools.islice(batches, num_batches):
                yield phase_index, sharding.place_batch(batch, mesh)

    ahead = placed()
    current = next(ahead, None)
    for step in itertools.count(first_step + 1):
        if current is None:
            return
        following = next(ahead, None)
        yield step, *current
        current = following
