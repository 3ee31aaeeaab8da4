"""A small BERT for an hour on two cores: 2 layers of 256, 3.8 million parameters.

    python -m bert_jax.train --config=configs/laptop.py --workdir=DIR
        --config.data.sources="('files:my_books/*.txt',)"

The recipe of configs/base.py, adapted to an hour of training. All numbers are ours,
tuned on 48 MB of books and Wikipedia (11 million tokens). The held-out masked-LM loss
was 3.56 nats at the end (unigram entropy: 6.34), and the next-sentence accuracy 96%.
"""

import ml_collections

from bert_jax.configs import sizes


def get_config() -> ml_collections.ConfigDict:
    config = sizes.get_config("2,256")
    config.data.sources = ("tfds:wikipedia/20230601.simple#text",)
    config.data.corpus_dir = "corpora/laptop"
    config.data.num_shards = 8
    config.data.num_streams = 8
    config.data.validation_fraction = 0.01
    config.data.masked_lm_prob = 0.2
    config.tokenizer.vocab_size = 8_000

    config.model.hidden_dropout_prob = 0.0
    config.model.attention_probs_dropout_prob = 0.0
    # Larger initial weights and, for most of the run, rows of 32: the loss leaves the
    # unigram entropy after 700 steps; with rows of 64 and 0.02, it took 6,500.
    config.model.initializer_range = 0.06
    config.model.max_position_embeddings = 64

    first, second = config.phases  # about 13,900 tokens per second
    first.num_steps = 16_500
    first.sequence_length = 32
    first.global_batch_size = 64
    first.max_predictions = 7  # sequence_length * masked_lm_prob
    second.num_steps = 2_300
    second.sequence_length = 64
    second.global_batch_size = 32
    second.max_predictions = 13

    config.optimizer.learning_rate = 1e-3
    config.optimizer.warmup_steps = 200
    # New positions need a high learning rate: with one schedule over both phases, the
    # loss of the second phase stayed above 5.
    config.optimizer.schedule_by_phase = True
    config.optimizer.beta2 = 0.99

    config.checkpoint.every_steps = 2_000
    config.checkpoint.keep_every_steps = 0
    config.eval.every_steps = 2_000
    config.eval.num_sequences = 1_024
    return config
