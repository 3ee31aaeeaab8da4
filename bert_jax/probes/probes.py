"""Reads the specs of probes, and runs the probes on parameters."""

import dataclasses
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bert_jax import storage
from bert_jax.distributed import multihost
from bert_jax.errors import ConfigError
from bert_jax.monitoring.writer import PROBE
from bert_jax.probes import blimp, stsb
from bert_jax.probes.target import Target

KINDS = {"blimp": blimp, "stsb": stsb}  # modules with read_probe and make_probe
Examples = dict[str, Any]  # by kind


def read(specs: Sequence[str], given_as: str = "config.eval.probes") -> Examples:
    """Reads the examples of probes.

    Args:
      specs: KIND:DIR, at most one of each of KINDS.
    """
    found: Examples = {}
    for spec in specs:
        kind, _, directory = spec.partition(":")
        where = f"{given_as} has {spec!r}"
        if kind not in KINDS or not directory:
            known = " or ".join(f"{name}:DIR" for name in KINDS)
            raise ConfigError(f"{where}; a probe must be {known}")
        if kind in found:
            raise ConfigError(f"{where}, a second {kind} probe; remove one of the two")
        path = Path(storage.parse_path(given_as, directory))
        if not path.is_dir():
            raise ConfigError(
                f"{where}, but {directory!r} is not a directory; give the directory of"
                " the data"
            )
        found[kind] = KINDS[kind].read_probe(path, where)
    if found:
        multihost.check_same(
            "probes",
            _digest(found),
            f"{given_as}={tuple(specs)!r} has different data on some hosts; copy the"
            " same files to all of them",
        )
    return found


def _digest(found: Examples) -> str:
    plain = {kind: dataclasses.asdict(examples) for kind, examples in found.items()}
    text = json.dumps(plain, default=lambda array: array.tolist())
    return hashlib.sha256(text.encode()).hexdigest()


class Probes:
    """Scores parameters on small tasks; does not change them."""

    def __init__(self, found: Examples, target: Target):
        """Prepares the rows of each task."""
        self._probes = {
            kind: KINDS[kind].make_probe(examples, target)
            for kind, examples in found.items()
        }

    def __call__(self, params: Any) -> dict[str, float]:
        """Returns the result of each probe as probe/KIND, the same in all processes."""
        return {PROBE + kind: probe(params) for kind, probe in self._probes.items()}
