"""A config of a run that is older than a key is completed; other gaps are errors."""

import copy
import json

import pytest

from bert_jax import config as config_lib
from bert_jax.config import added_keys
from bert_jax.errors import ConfigError
from tests.conftest import make_config

VALUES = json.loads(make_config().to_json())


@pytest.mark.parametrize("key", added_keys.ADDED)
def test_a_missing_key_gets_the_value_with_which_nothing_changes(key):
    values = copy.deepcopy(VALUES)
    *sections, name = key.split(".")
    section = values
    for part in sections:
        section = section[part]
    del section[name]
    with pytest.raises(ConfigError, match=rf"config\.{key} is missing"):
        config_lib.from_config_dict(values)  # a config file has to set it
    added_keys.complete(values)
    assert config_lib.from_config_dict(values) == make_config()


def test_keys_that_are_there_keep_their_value():
    values = copy.deepcopy(VALUES)
    values["eval"]["probes"] = ["stsb:x"]
    added_keys.complete(values)
    assert values["eval"]["probes"] == ["stsb:x"]


@pytest.mark.parametrize("values", [{}, {"eval": 3}, {"eval": None}])
def test_a_missing_section_is_left_to_the_schema(values):
    found = copy.deepcopy(values)
    added_keys.complete(found)
    assert found == values
