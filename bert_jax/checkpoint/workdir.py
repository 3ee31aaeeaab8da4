"""Advisory file locks: one process at a time writes to a directory."""

import dataclasses
import os
import socket
from pathlib import Path
from typing import Any

from bert_jax import config as config_lib
from bert_jax import storage
from bert_jax.config import ExperimentConfig
from bert_jax.errors import ConfigError

CONFIG_FILE = "config.json"

# What may change when a run continues: where and how it runs, not what it computes.
MAY_CHANGE = (
    "mesh",
    "accumulation_steps",
    "remat",
    "log_every_steps",
    "compilation_cache_dir",
    "checkpoint",
    "eval",
    "guard",
    "data.corpus_dir",  # it may have moved; its manifest's digest is compared
)

LOCK_FILE = ".lock"


def hold(workdir: str) -> None:
    """Takes the workdir for this process until it ends, in whatever way.

    Raises:
      ConfigError: when another process has it; the message names that.
    """
    path = Path(workdir) / LOCK_FILE
    # Never closed: the kernel gives it back at the end of the process, kill -9 too.
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    if not storage.acquire(file):
        holder = os.read(file, 200).decode(errors="replace").strip() or "a process"
        os.close(file)
        raise ConfigError(
            f"--workdir={workdir} is being written by {holder}; wait for it or stop it,"
            " or give another --workdir"
        )
    os.ftruncate(file, 0)
    os.write(file, f"process {os.getpid()} on {socket.gethostname()}\n".encode())


def read_config(workdir: str) -> ExperimentConfig | None:
    """Returns the config of the run in a workdir, None when there is none.

    Raises:
      CorruptError: if the file holds no JSON object.
      ConfigError: if its keys or values are not those of a config.
    """
    path = Path(workdir) / CONFIG_FILE
    if not path.is_file():
        return None
    values: Any = storage.read_json(path, "restore it, or give another --workdir")
    try:
        return config_lib.from_config_dict(values)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def write_config(workdir: str, config: ExperimentConfig) -> None:
    path = Path(workdir) / CONFIG_FILE
    storage.write(str(path), (config.to_json() + "\n").encode())


def check_continues(workdir: str, config: ExperimentConfig) -> None:
    """Raises ConfigError when the workdir holds a run with another config, or of none.

    `train` writes the config before the first checkpoint.
    """
    started = read_config(workdir)
    if started is None:
        checkpoints = Path(workdir) / "checkpoints"
        if checkpoints.is_dir() and any(checkpoints.iterdir()):
            raise ConfigError(
                f"--workdir={workdir} has checkpoints but no {CONFIG_FILE}, so whether"
                " they are of this config is not known; restore the file, or give"
                " another --workdir"
            )
        return
    was, now = flat(dataclasses.asdict(started)), flat(dataclasses.asdict(config))
    for key in sorted({*was, *now}):
        may_change = key in MAY_CHANGE or key.partition(".")[0] in MAY_CHANGE
        if not may_change and was.get(key) != now.get(key):
            raise ConfigError(
                f"config.{key}={now.get(key)!r}, but the run in {workdir} was started"
                f" with {was.get(key)!r}; give that, or another --workdir"
            )


def flat(value: Any, path: str = "") -> dict[str, Any]:
    """Returns the leaves of nested dicts and tuples by path: phases[0].num_steps."""
    if isinstance(value, dict):
        items = [(f"{path}.{key}" if path else key, v) for key, v in value.items()]
    elif isinstance(value, list | tuple) and value and isinstance(value[0], dict):
        items = [(f"{path}[{i}]", v) for i, v in enumerate(value)]
    else:
        return {path: value}
    return {k: v for sub, inner in items for k, v in flat(inner, sub).items()}
