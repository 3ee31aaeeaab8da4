"""The BERT of "Dive into Deep Learning", section 15.10: 50 steps on WikiText-2.

    python -m bert_jax.train --config=configs/d2l.py --workdir=DIR
        --config.data.sources="('text:wikitext-2/wiki.train.tokens',)"

Sizes, batch, rate, dropout and number of steps are the book's. The model is BERT: GELU
instead of ReLU, LayerNorm on the embeddings, and a decoder that is tied to the table of
tokens. Pairs are those of Devlin et al. 2019: they fill the row, where the book pairs
single sentences. The tokenizer is WordPiece, with as many tokens as the book has words
that occur 5 times in the training text. docs/evidence.md compares this config, with
the book's words, with the book's own setting.
"""

import ml_collections

from bert_jax.configs import base


def get_config() -> ml_collections.ConfigDict:
    config = base.get_config()
    config.log_every_steps = 10
    config.data.sources = ("text:wikitext-2/wiki.train.tokens",)
    config.data.corpus_dir = "corpora/d2l"
    config.data.num_shards = 1
    config.data.num_streams = 1
    config.data.validation_fraction = 0.0  # the book holds nothing out
    config.data.short_seq_prob = 0.0
    config.tokenizer.vocab_size = 20_256  # len(vocab) in section 15.9

    config.model.hidden_size = 128
    config.model.num_hidden_layers = 2
    config.model.num_attention_heads = 2
    config.model.intermediate_size = 256
    config.model.hidden_dropout_prob = 0.2
    config.model.attention_probs_dropout_prob = 0.2
    config.model.max_position_embeddings = 64

    config.phases = config.phases[:1]
    (phase,) = config.phases
    phase.num_steps = 50
    phase.sequence_length = 64
    phase.global_batch_size = 512
    phase.max_predictions = 10  # sequence_length * masked_lm_prob

    # torch.optim.Adam(lr=0.01): bias correction, and no decay, warmup or clipping.
    config.optimizer.name = "adamw"
    config.optimizer.schedule = "constant"
    config.optimizer.learning_rate = 0.01
    config.optimizer.warmup_steps = 0
    config.optimizer.weight_decay = 0.0
    config.optimizer.epsilon = 1e-8
    config.optimizer.clip_norm = 1e6

    config.checkpoint.every_steps = 50
    config.checkpoint.keep_every_steps = 0
    config.checkpoint.keep_best = 0
    config.eval.every_steps = 50
    return config
