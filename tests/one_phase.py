"""Reduces configs/tiny.py to one phase and one schedule.

Mask rate, first weights and name of the optimizer are those of the released BERT.
"""

import ml_collections

from bert_jax.configs import tiny


def get_config() -> ml_collections.ConfigDict:
    config = tiny.get_config()
    config.phases = config.phases[-1:]
    config.optimizer.schedule_by_phase = False
    config.optimizer.update(
        name="adamw_bert", beta1=0.9, weight_decay=0.01, learning_rate=2e-3
    )
    config.data.masked_lm_prob = 0.15
    config.model.initializer_range = 0.02
    return config
