"""Fuzzes the values and keys of configs."""

import copy
import json

from hypothesis import given
from hypothesis import strategies as st

from bert_jax import config as config_lib
from bert_jax.checkpoint import workdir
from bert_jax.configs import base, tiny
from tests.faults.fuzzed import JSON, config_error, edited, edits, new_directory

CONFIGS = [json.loads(module.get_config().to_json()) for module in (tiny, base)]


def paths(value, path=()):
    """Returns the path of every section and value in a config."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    found = [path] if path else []
    for key, inner in items:
        if isinstance(inner, dict | list):
            found += paths(inner, (*path, key))
        else:
            found.append((*path, key))
    return found


# JSON values, and numbers at the edges of ranges.
VALUES = (
    JSON
    | st.integers(-3, 2000)
    | st.sampled_from([1e-300, 1e300, float("nan"), float("inf"), 0.5, 1.0, "gelu"])
    | st.lists(st.text(max_size=3), max_size=2)
)


@st.composite
def changed_configs(draw):
    config = copy.deepcopy(draw(st.sampled_from(CONFIGS)))
    for _ in range(draw(st.integers(1, 3))):
        *above, key = draw(st.sampled_from(paths(config)))
        section = config
        for part in above:
            section = section[part]
        kind = draw(st.sampled_from(("set", "set", "set", "remove", "add")))
        if kind == "set":
            section[key] = draw(VALUES)
        elif kind == "remove":
            del section[key]
        elif isinstance(section, dict):
            section[draw(st.text(max_size=8))] = draw(VALUES)
    return config


@given(changed_configs())
def test_any_value_at_any_key(config):
    made = []
    if not config_error(
        lambda: made.append(config_lib.from_config_dict(config)), "config"
    ):
        assert config_lib.from_saved(json.loads(made[0].to_json())) == made[0]


WRITTEN = json.dumps(CONFIGS[0], indent=2).encode()


@given(edits.map(lambda edits: edited(WRITTEN, edits)) | st.binary())
def test_the_config_in_a_workdir(content):
    directory = new_directory()
    (directory / "config.json").write_bytes(content)
    config_error(lambda: workdir.read_config(str(directory)), "config.json")
