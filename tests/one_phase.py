"""configs/tiny.py in one phase and one schedule, with the released mask rate."""

import ml_collections

from configs import tiny


def get_config() -> ml_collections.ConfigDict:
    config = tiny.get_config()
    config.phases = config.phases[-1:]
    config.optimizer.schedule_by_phase = False
    config.data.masked_lm_prob = 0.15
    return config
