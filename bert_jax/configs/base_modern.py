"""BERT-base with improvements to the recipe since 2018; the model is unchanged.

    python -m bert_jax.prepare --config=configs/base_modern.py
    python -m bert_jax.train --config=configs/base_modern.py --workdir=DIR

The changes are no dropout, twice as many masks, a larger batch, a higher learning rate
and packed rows. Held-out text is masked at 15% as in configs/base.py, so that their
losses are comparable. Sources: Portes et al. 2023 (MosaicBERT) for batch size, steps,
learning rate, warmup and masks; Wettig et al. 2023 for mask rates above 15%; Geiping
and Goldstein 2023 (Cramming) for dropout and beta2; Krell et al. 2021 for packing. This
project has not run it in full.
"""

import ml_collections

from bert_jax.configs import base


def get_config() -> ml_collections.ConfigDict:
    config = base.get_config()
    config.data.masked_lm_prob = 0.3  # MosaicBERT; Wettig et al.: 15% is too few
    config.eval.masked_lm_prob = 0.15

    # Cramming: a model does not overfit text that it sees about once.
    config.model.hidden_dropout_prob = 0.0
    config.model.attention_probs_dropout_prob = 0.0

    # MosaicBERT trains for 70,000 steps of 4,096 x 128 tokens. As in base, the last
    # tenth of the steps has length 512, with the same number of tokens per step.
    # `max_predictions` is large enough for the masks of all pairs in a row.
    first, second = config.phases
    first.num_steps = 63_000
    first.global_batch_size = 4_096
    first.max_sequences_per_row = 4
    first.max_predictions = 40
    second.num_steps = 7_000
    second.global_batch_size = 1_024
    second.max_sequences_per_row = 8
    second.max_predictions = 157

    config.optimizer.name = "adamw"  # with bias correction
    config.optimizer.learning_rate = 5e-4  # MosaicBERT
    config.optimizer.warmup_steps = 4_200  # MosaicBERT: 6% of the steps
    config.optimizer.beta2 = 0.98  # Cramming
    return config
