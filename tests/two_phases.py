"""The config of one_phase.py with its phase twice."""

import copy

import ml_collections

from tests import one_phase


def get_config() -> ml_collections.ConfigDict:
    config = one_phase.get_config()
    config.phases += copy.deepcopy(config.phases)
    return config
