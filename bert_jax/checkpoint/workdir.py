"""The workdir of a run: its lock, its config, and whether the run has begun."""

import os
import shlex
import socket
from collections.abc import Iterator, Set
from typing import IO, Any

from bert_jax import config as config_lib
from bert_jax import small_files, storage
from bert_jax.checkpoint import integrity
from bert_jax.config import ExperimentConfig, MayChange
from bert_jax.distributed import multihost
from bert_jax.errors import ConfigError
from bert_jax.storage import lease

CONFIG_FILE = "config.json"
LOCK_FILE = ".lock"
ROLLBACK_FILE = "rollback.json"  # see training/rollbacks.py
LEASE_DIRECTORY = "lock"  # in a bucket
FINETUNING_FILE = "finetune.json"  # see finetuning/sweep.py
# By a file or directory of it, what a directory is; see `check_not_other`.
_KINDS = {
    "manifest.json": "a corpus of python -m bert_jax.prepare",
    FINETUNING_FILE: "the workdir of python -m bert_jax.finetune",
    integrity.DIRECTORY: "the workdir of python -m bert_jax.train",
    CONFIG_FILE: "a model, or the workdir of python -m bert_jax.train",
    "bert_config.json": "a model",
}
# Never closed: the kernel releases a lock when the process ends, even by SIGKILL.
_locked: list[IO[str]] = []


def is_begun(workdir: str, config: ExperimentConfig) -> bool:
    """Returns whether there is a checkpoint to resume from; checks the config."""
    check_config(workdir, config)
    begun = bool(integrity.steps(workdir))
    multihost.check_same(
        "begun",
        str(begun),
        f"--workdir={workdir} is not the same directory on all hosts; use a directory"
        " that all hosts share",
    )
    return begun


def lock_and_recover(workdir: str, config: ExperimentConfig) -> int:
    """Creates and locks the workdir, and moves corrupt checkpoints aside.

    Returns the step of the newest valid checkpoint, 0 for a new run.
    """
    multihost.make_shared(workdir)

    def recover() -> int:
        lock(workdir)
        check_config(workdir, config)
        return integrity.recover(workdir)

    return multihost.agree("first step", recover)


def begin(workdir: str, config: ExperimentConfig, saved_step: int) -> None:
    """Writes the config; a run without a checkpoint removes an old rollback record."""
    if multihost.is_first():
        if not saved_step:
            storage.remove(os.path.join(workdir, ROLLBACK_FILE))
        write_config(workdir, config)


def lock(workdir: str) -> None:
    """Locks the workdir until this process ends, or raises ConfigError.

    The kernel releases a lock on a disk; `lease.release_all` releases one in a bucket.
    """
    if storage.is_remote(workdir):
        directory = f"{workdir}/{LEASE_DIRECTORY}"
        holder = lease.Lease(directory, f"--workdir={workdir}").acquire()
    else:
        holder = _lock_file(workdir)
    if holder:
        raise ConfigError(
            f"--workdir={workdir} is being written by {holder}; wait for it or stop it,"
            " or use another --workdir"
        )


def _lock_file(workdir: str) -> str | None:
    file = storage.open_own(os.path.join(workdir, LOCK_FILE), "a+", errors="replace")
    if not storage.acquire(file.fileno()):
        with file:
            file.seek(0)
            return file.read(200).strip() or "a process"
    _locked.append(file)
    file.truncate(0)
    file.write(f"process {os.getpid()} on {socket.gethostname()}\n")
    file.flush()
    return None


def read_config(workdir: str) -> ExperimentConfig | None:
    """Returns the config of the run in a workdir, or None if there is none."""
    path = os.path.join(workdir, CONFIG_FILE)
    if not storage.exists(path):
        return None
    values: Any = small_files.read_json(path, "restore it, or use another --workdir")
    if "architectures" in values:
        raise ConfigError(
            f"{workdir} is the directory of a model, not a workdir of train; give that"
            " of its run, or for a new run (config.init_from=MODEL) a new directory"
        )
    try:
        return config_lib.from_saved(values)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def config_of_run(workdir: str, given: str) -> ExperimentConfig:
    """Returns the config of the run in a workdir; errors name `given`."""
    config = read_config(workdir)
    if config is None:
        raise ConfigError(
            f"{given} has no {CONFIG_FILE}; use the workdir of a run of python -m"
            " bert_jax.train"
        )
    return config


def check_not_other(directory: str, given: str, *own: str) -> None:
    """Raises ConfigError if new files would be written into a directory of another use.

    Args:
      given: the flag or key with the directory, for the error message.
      own: the files of `_KINDS` that the writer of the new files handles itself.
    """
    for name, kind in _KINDS.items():
        if name not in own and storage.exists(os.path.join(directory, name)):
            raise ConfigError(
                f"{given} has {name}, like {kind}; give another directory"
            )


def write_config(workdir: str, config: ExperimentConfig) -> None:
    path = os.path.join(workdir, CONFIG_FILE)
    storage.write(path, (config.to_json() + "\n").encode())


def check_config(workdir: str, config: ExperimentConfig) -> None:
    """Raises ConfigError if the run in a workdir has a different or no config.

    `train` writes the config before the first checkpoint. Keys that may change on
    resume are not compared.
    """
    started = read_config(workdir)
    if started is None:
        own, corpus_dir = [integrity.DIRECTORY], config.data.corpus_dir
        if storage.absolute(corpus_dir) == storage.absolute(workdir):
            own.append("manifest.json")
        check_not_other(workdir, f"--workdir={workdir}", *own)
        if storage.names(os.path.join(workdir, integrity.DIRECTORY)):
            raise ConfigError(
                f"--workdir={workdir} has checkpoints but no {CONFIG_FILE}, so their"
                " config is unknown; restore the file, or use another --workdir"
            )
        return
    if len(started.phases) != len(config.phases):
        raise ConfigError(
            f"config.phases has {len(config.phases)} phases, but the run in {workdir}"
            f" was started with {len(started.phases)}; use the config with which it"
            " was started, or another --workdir"
        )
    if changed := [*changed_keys(started, config, {MayChange.ON_RESUME})]:
        key, was, now = changed[0]
        flags = as_flags({f"config.{key}": was for key, was, _ in changed}, CONFIG_FILE)
        raise ConfigError(
            f"config.{key}={now!r}, but the run in {workdir} was started with {was!r};"
            f" continue it with {flags}, or use another --workdir"
        )


def as_flags(values: dict[str, Any], file: str) -> str:
    """Returns flags with the values of a run for a shell; if many, where they are."""
    if len(values) > 5:
        return f"the {len(values)} values of its {file} that differ"
    return shlex.join(
        f"--{key}={tuple(value) if isinstance(value, list) else value}"
        for key, value in values.items()
    )


def changed_keys(
    was: ExperimentConfig, now: ExperimentConfig, allowed: Set[MayChange]
) -> Iterator[tuple[str, Any, Any]]:
    """Yields (key, value, other value) of keys that differ and have no allowed mark."""
    before, after = (
        {
            key: value
            for key, value, marks in config_lib.leaves(config)
            if allowed.isdisjoint(marks)
        }
        for config in (was, now)
    )
    for key in sorted({*before, *after}):
        if before.get(key) != after.get(key):
            yield key, before.get(key), after.get(key)
