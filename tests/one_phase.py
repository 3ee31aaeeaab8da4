"""Reduces configs/tiny.py to one phase and one schedule.

The mask rate and the first weights are those of the released BERT.
"""

import ml_collections

from bert_jax.configs import tiny


def get_config() -> ml_collections.ConfigDict:
    config = tiny.get_config()
    config.phases = config.phases[-1:]
    config.optimizer.schedule_by_phase = False
    config.data.masked_lm_prob = 0.15
    config.model.initializer_range = 0.02
    return config
