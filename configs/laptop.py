"""A small BERT in an hour on two cores: 2 layers of 256, 3.8 million parameters.

    python -m bert_jax.train --config=configs/laptop.py --workdir=DIR
        --config.data.sources="('files:my_books/*.txt',)"

The base recipe, changed where an hour is short. All numbers are ours, found by trying
them on 48 MB of books and Wikipedia, 11 million tokens: there the held-out masked-LM
loss was 4.12 nats after 57 minutes (word frequencies alone: 6.30), and true next
sentences were told in 95% of pairs.
"""

import ml_collections

from configs import sizes


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
    config.model.max_position_embeddings = 64

    config.phases = config.phases[:1]
    config.phases[0].num_steps = 20_500  # some 13,000 tokens a second
    config.phases[0].sequence_length = 64
    config.phases[0].global_batch_size = 32
    config.phases[0].max_predictions = 13  # sequence_length * masked_lm_prob

    config.optimizer.learning_rate = 2e-3
    config.optimizer.warmup_steps = 500
    config.optimizer.beta2 = 0.99

    config.checkpoint.every_steps = 2_000
    config.checkpoint.keep_every_steps = 0
    config.eval.every_steps = 1_000
    config.eval.num_sequences = 1_024
    return config
