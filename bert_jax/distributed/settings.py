"""Checks that all processes of a run have the same settings, code and libraries.

Processes that differ would train together: each computes its part of a step by its own
program, and the result is that of no config.
"""

import dataclasses
import hashlib
import importlib.metadata
import json
import sys
from pathlib import Path
from typing import Any, cast

from absl import flags
from jax._src import distributed  # the coordination client has no public name

import bert_jax
from bert_jax.config import flatten
from bert_jax.errors import ConfigError

LIBRARIES = ("jax", "jaxlib", "libtpu", "flax", "optax", "numpy")
WAIT_SECS = 300  # a host with a cold disk imports its libraries and reads the sources
_KEY = "bert_jax/settings"


def check_same(config: Any) -> None:
    """Raises ConfigError if this process differs from process 0; opens no device.

    The others are stopped before they return.
    """
    state, client = distributed.global_state, cast(Any, distributed.global_state.client)
    found = code() | flag_values() | flatten({"config": dataclasses.asdict(config)})
    mine = {name: json.dumps(value) for name, value in found.items()}
    if state.process_id == 0:
        client.key_value_set(_KEY, json.dumps(mine))
    first = json.loads(client.blocking_key_value_get(_KEY, WAIT_SECS * 1000))
    for name in {**first, **mine}:
        if mine.get(name) != first.get(name):
            raise ConfigError(
                f"{name} is {mine.get(name)} in process {state.process_id}, but"
                f" {first.get(name)} in process 0; start all processes with the same"
                " command, code and libraries"
            )
    client.wait_at_barrier(_KEY, WAIT_SECS * 1000)


def flag_values() -> dict[str, Any]:
    """Returns the values of the command's flags, except --config: its keys count."""
    own = flags.FLAGS.get_key_flags_for_module(sys.argv[0])
    return {f"--{flag.name}": flag.value for flag in own if flag.name != "config"}


def code() -> dict[str, Any]:
    """Returns the versions of bert_jax and LIBRARIES, and a digest of the sources."""
    found: dict[str, Any] = {"the version of bert_jax": bert_jax.__version__}
    for name in LIBRARIES:
        try:
            version = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            version = None
        found[f"the version of {name}"] = version
    package, sha256 = Path(bert_jax.__file__).parent, hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        content = hashlib.sha256(path.read_bytes()).hexdigest()
        sha256.update(f"{content}  {path.relative_to(package)}\n".encode())
    found["the digest of the sources of bert_jax"] = sha256.hexdigest()[:16]
    return found
