"""BERT of 12 layers of 512 and 64 positions, 42 million parameters, for minutes.

    python -m bert_jax.train --config=configs/gpu.py --workdir=DIR
        --config.data.sources="('files:my_books/*.txt',)"

The recipe of configs/base.py, adapted to a few minutes of training on one GPU; the
clock ends it, see config.budget_hours. The model takes texts of at most 64 tokens; for
512 and a day of time, use configs/gpu_day.py.

All numbers are ours. On 48 MB of books and Wikipedia (11 million tokens), one NVIDIA
H200 took 4,519 steps in 3 min 34 s. The held-out masked-LM loss was 2.57 nats at the
end (unigram entropy: 6.34), and the next-sentence accuracy 97%. The text was read 25
times, and the loss on it was 0.1 below the held-out one; 8 layers without dropout read
it 37 times, with a loss 0.35 below, and had 2.60 nats.
"""

import ml_collections

from bert_jax.configs import sizes


def get_config() -> ml_collections.ConfigDict:
    config = sizes.get_config("12,512")
    config.budget_hours = 215 / 3_600
    config.compute_dtype = "bfloat16"
    config.log_every_steps = 50  # the plan of the last step is as exact as a line
    config.data.sources = ("tfds:wikipedia/20230601.simple#text",)
    config.data.corpus_dir = "corpora/gpu"
    config.data.num_shards = 8
    config.data.num_streams = 8
    config.data.validation_fraction = 0.01
    config.data.masked_lm_prob = 0.2
    config.tokenizer.vocab_size = 8_000

    config.model.initializer_range = 0.03  # 1 / sqrt(512) is 0.044; not tuned
    config.model.max_position_embeddings = 64  # the longest text of the model

    first, _ = config.phases  # 1.5 million tokens per second
    first.num_steps = 1_000_000  # more than there is time for
    first.sequence_length = 64
    first.global_batch_size = 1_024
    first.max_predictions = 13  # sequence_length * masked_lm_prob
    config.phases = (first,)

    config.optimizer.name = "adamw"  # with bias correction
    config.optimizer.learning_rate = 5e-4
    config.optimizer.weight_decay = 0.1
    config.optimizer.warmup_steps = 600
    config.optimizer.schedule = "wsd"
    config.optimizer.beta2 = 0.98

    # Only where the decay begins and at the end: the whole run takes minutes.
    config.checkpoint.every_steps = first.num_steps
    config.checkpoint.every_minutes = 0.0
    config.checkpoint.keep = 1
    config.checkpoint.keep_every_steps = 0
    config.checkpoint.keep_best = 0
    config.eval.every_steps = 1_500
    config.eval.num_sequences = 4_096
    return config
