"""BabyLM's strict-small track: 10 million words, read ten times at most.

    python -m bert_jax.prepare --config=configs/babylm.py
    python -m bert_jax.train --config=configs/babylm.py:TOKENS --workdir=DIR

BERT of 12 layers of 384, 28 million parameters. TOKENS is the number of tokens that
`prepare` prints, by default 14 million; the steps of the run have ten times as many,
special tokens and padding included. Batch, rate, weight decay, masks and z-loss are
those of entries of 2024 to 2026 (GPT-BERT, MPO-BabyLM, BabySteps), see docs/recipes.md.
Positions, the objectives and the phase of 512 tokens are those of BERT. This project
has not run it in full.
"""

import ml_collections

from bert_jax.configs import sizes
from bert_jax.errors import ConfigError

PASSES = 10
TOKENS_PER_STEP = 128 * 128
# The track evaluates checkpoints after these millions of words, so percents of a run.
MILLIONS = (*range(1, 10), *range(10, 101, 10))


def get_config(tokens: str = "14000000") -> ml_collections.ConfigDict:
    if not (tokens.isascii() and tokens.isdigit()):
        raise ConfigError(
            f"{tokens!r} is not a number of tokens; give the one that prepare prints,"
            " as in configs/babylm.py:14000000"
        )
    percent = PASSES * int(tokens) // TOKENS_PER_STEP // 100
    if not percent:
        raise ConfigError(
            f"{tokens} tokens are too few; the track has 10 million words"
        )

    config = sizes.get_config("12,384")
    config.data.sources = ("text:babylm/*.train",)
    config.data.corpus_dir = "corpora/babylm"
    config.data.num_shards = 8
    config.data.num_streams = 8
    config.data.validation_fraction = 0.01
    # Most of its text is speech without an empty line between documents.
    config.data.max_document_bytes = 2**16
    config.data.max_line_bytes = 2**14
    config.data.masked_lm_prob = 0.3
    config.data.final_masked_lm_prob = 0.15
    config.tokenizer.vocab_size = 16_000
    # Between those of configs/laptop.py and gpu.py, for their widths; not tuned.
    config.model.initializer_range = 0.04

    first, second = config.phases
    first.num_steps = 90 * percent
    first.global_batch_size = TOKENS_PER_STEP // first.sequence_length
    first.max_predictions = 39  # sequence_length * masked_lm_prob, rounded up
    second.num_steps = 10 * percent
    second.global_batch_size = TOKENS_PER_STEP // second.sequence_length
    second.max_predictions = 154

    config.loss_weights.z_loss = 1e-4
    config.optimizer.name = "adamw"
    config.optimizer.learning_rate = 5e-4  # MPO-BabyLM, for this batch
    config.optimizer.weight_decay = 0.1
    config.optimizer.beta2 = 0.98  # Cramming, as in configs/base_modern.py
    config.optimizer.schedule = "cosine"
    config.optimizer.warmup_steps = 2 * percent
    config.optimizer.average_steps = 20 * percent  # BabySteps

    config.checkpoint.every_steps = 10 * percent
    config.checkpoint.every_minutes = 0.0
    config.checkpoint.keep = 1
    config.checkpoint.keep_every_steps = 0
    config.checkpoint.keep_steps = tuple(millions * percent for millions in MILLIONS)
    config.checkpoint.keep_best = 0
    config.eval.every_steps = 10 * percent
    config.eval.num_sequences = 2_048
    return config
