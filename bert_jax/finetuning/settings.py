"""Locks the workdir of a sweep, and keeps its settings the same in every call."""

import json
import os
from pathlib import Path
from typing import Any

from bert_jax import config as config_lib
from bert_jax import small_files, storage
from bert_jax.checkpoint import workdir as workdir_lib
from bert_jax.errors import ConfigError
from bert_jax.finetuning import inputs
from bert_jax.finetuning.inputs import Start
from bert_jax.finetuning.setup import Setup

SETTINGS_FILE = "finetune.json"
# Prefixes of settings that may change between calls: those that affect where and how a
# run computes, but not its results.
MAY_CHANGE = (
    "config.mesh",
    "config.accumulation_steps",
    "config.remat",
    "config.log_every_steps",
    "config.compilation_cache_dir",
    "config.trackers",
    "config.data.test",  # predicted anew in every call
    "config.task.glue",
    "config.task.index",
    "config.recipe.learning_rate",  # each rate has its own runs
    "config.recipe.learning_rates",
    "model",  # the paths may change; the digests are compared
    "config.distill.teacher",
)


def take(workdir: str, setup: Setup, start: Start) -> str:
    """Locks the workdir and writes its settings; returns "", for `multihost.agree`.

    Raises:
      ConfigError: if another process writes there, or the workdir has other settings.
    """
    workdir_lib.lock(workdir)
    settings: dict[str, Any] = {
        "config": json.loads(setup.config.to_json()),
        # Other paths are URLs, or names on the Hugging Face Hub.
        "model": os.path.abspath(start.model)
        if os.path.exists(start.model)
        else start.model,
        "is_from_scratch": start.is_from_scratch,
        "lowercase": setup.encoder.tokenizer.lowercase,
        "encoder_sha256": inputs.digest(setup.encoder),
        "data_sha256": setup.sha256,
    }
    path = Path(workdir) / SETTINGS_FILE
    if path.is_file():
        remedy = "restore it, or use another --workdir"
        _check_same(workdir, small_files.read_json(path, remedy), settings)
    elif (Path(workdir) / workdir_lib.CONFIG_FILE).is_file():
        raise ConfigError(
            f"--workdir={workdir} has a run of python -m bert_jax.train, or a model;"
            " use another --workdir"
        )
    storage.write(str(path), (json.dumps(settings, indent=2) + "\n").encode())
    return ""


def _check_same(workdir: str, before: dict[str, Any], now: dict[str, Any]) -> None:
    """Raises ConfigError if a setting outside of MAY_CHANGE differs."""
    before, now = config_lib.flatten(before), config_lib.flatten(now)
    for key in sorted({*before, *now}):
        if key.startswith(MAY_CHANGE) or before.get(key) == now.get(key):
            continue
        if key in inputs.DIGESTED:
            raise ConfigError(
                f"{inputs.DIGESTED[key]} has changed since --workdir={workdir} was"
                " started; restore it, or use another --workdir"
            )
        raise ConfigError(
            f"{key}={now.get(key)!r}, but --workdir={workdir} was started with"
            f" {before.get(key)!r}; use that value, or another --workdir"
        )
