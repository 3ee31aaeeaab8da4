"""Work directories of an unfinished corpus, from which `prepare` resumes.

`unfinished/` in the corpus directory contains the lock and the path of the scratch
directory; for a corpus in a bucket it is in the system's temporary directory, and the
bucket has a lock as well. The scratch directory contains everything else, which is
about as large as the corpus. On a local disk it is `unfinished/` itself. If the corpus
directory is on a network or FUSE file system, it is in the system's temporary
directory.

Each stage of the work has a subdirectory with a file that lists the settings on which
its content depends. A stage is emptied if these settings change.
"""

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

from bert_jax import storage
from bert_jax.data.corpus import corpus, file_systems
from bert_jax.errors import ConfigError
from bert_jax.storage import lease

NAME = "unfinished"
LEASE_DIRECTORY = "lock"  # in a bucket
_FACTS = "facts.json"
_MADE_FOR = "made_for.json"


@contextlib.contextmanager
def opened(corpus_dir: str, scratch_dir: str | None = None) -> Iterator[str]:
    """Locks the work on a corpus, and yields its scratch directory.

    If a ConfigError is raised before any stage has content, all directories are
    removed. After any other error the work is kept.

    Args:
      corpus_dir: the corpus directory, created if it does not exist.
      scratch_dir: parent of the scratch directory; None for the default.

    Raises:
      ConfigError: when another process is preparing the corpus, a directory is not
        writable, or corpus_dir contains shards that do not belong to this work.
    """
    state = _state(corpus_dir)
    _check_no_other_shards(corpus_dir, _facts(state))
    made_directory = not storage.exists(corpus_dir)
    with _locked(corpus_dir, state):
        found = _facts(state)
        try:  # checked again: the process that held the lock may have finished
            _check_no_other_shards(corpus_dir, found)
        except ConfigError:
            shutil.rmtree(state)
            raise
        scratch = _scratch(corpus_dir, state, scratch_dir, found)
        facts = {"made_directory": made_directory} | (found or {})
        if found != (facts := facts | {"scratch": scratch}):
            text = json.dumps(facts, indent=2)
            storage.write(os.path.join(state, _FACTS), text.encode())
        _remove_temporary_files(corpus_dir, scratch)
        try:
            yield scratch
        except ConfigError:
            if not has_work(scratch):
                _discard(corpus_dir)
            raise
        # Writes that a bucket rejected also leave temporary files.
        _remove_temporary_files(corpus_dir, scratch)


def stage(
    scratch: str,
    name: str,
    made_for: dict[str, Any],
    *,
    clear: Callable[[], None] = lambda: None,
    fits: Callable[[dict[str, Any]], bool] | None = None,
) -> str:
    """Returns the directory of a stage, emptied if its settings have changed.

    Args:
      scratch: scratch directory, see `opened`.
      name: name of the stage.
      made_for: settings on which the content depends, as JSON values.
      clear: called before the stage is emptied.
      fits: called with other settings; returns whether their content can be reused.
    """
    path = os.path.join(scratch, name)
    made_for = json.loads(json.dumps(made_for))
    found = _read_json(os.path.join(path, _MADE_FOR))
    if found != made_for:
        if found is None or fits is None or not fits(found):
            clear()
            shutil.rmtree(path, ignore_errors=True)
        os.makedirs(path, exist_ok=True)
        text = json.dumps(made_for, indent=2)
        storage.write(os.path.join(path, _MADE_FOR), text.encode())
    return path


def has_work(scratch: str) -> bool:
    """Returns whether any stage has content."""
    return any(
        set(os.listdir(entry.path)) - {_MADE_FOR}
        for entry in os.scandir(scratch)
        if entry.is_dir()
    )


def is_unfinished(corpus_dir: str) -> bool:
    """Returns whether a directory contains a corpus that `prepare` has not finished."""
    if corpus.exists(corpus_dir):
        return False
    return os.path.exists(_state(corpus_dir)) or bool(corpus.shard_files(corpus_dir))


def remove(corpus_dir: str) -> None:
    """Removes the work directories of a finished corpus, if they exist."""
    state = _state(corpus_dir)
    if facts := _facts(state):
        shutil.rmtree(facts["scratch"], ignore_errors=True)
    shutil.rmtree(state, ignore_errors=True)


def remove_shards(corpus_dir: str) -> None:
    """Removes all shards in a corpus directory."""
    for name in corpus.shard_files(corpus_dir):
        storage.remove(os.path.join(corpus_dir, name))


def _state(corpus_dir: str) -> str:
    if storage.is_remote(corpus_dir):
        return _path_in(tempfile.gettempdir(), corpus_dir)
    return os.path.join(corpus_dir, NAME)


def _path_in(directory: str, corpus_dir: str) -> str:
    """Returns a path in `directory` that is unique to the corpus directory."""
    is_remote = storage.is_remote(corpus_dir)
    identity = corpus_dir if is_remote else os.path.realpath(corpus_dir)
    digest = hashlib.sha256(identity.encode()).hexdigest()
    return os.path.join(directory, f"bert_jax-{digest[:16]}")


def _scratch(
    corpus_dir: str, state: str, scratch_dir: str | None, found: dict[str, Any] | None
) -> str:
    """Returns the scratch directory, which is created if it does not exist."""
    before = found["scratch"] if found else None
    if scratch_dir:
        scratch = _path_in(os.path.abspath(scratch_dir), corpus_dir)
    elif before and os.path.isdir(before):
        scratch = before
    elif file_systems.is_networked(state):
        scratch = _path_in(tempfile.gettempdir(), corpus_dir)
    else:
        scratch = state
    if before and before != scratch and before != state:
        shutil.rmtree(before, ignore_errors=True)
    try:
        os.makedirs(scratch, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"--scratch_dir={scratch_dir or os.path.dirname(scratch)} is not writable"
            f" ({error}); give a writable directory on a local disk"
        ) from None
    if scratch != os.path.join(corpus_dir, NAME):
        free = shutil.disk_usage(scratch).free / 1e9
        print(f"scratch: {scratch} ({free:,.0f} GB free)", flush=True)
    return scratch


def _check_no_other_shards(corpus_dir: str, found: dict[str, Any] | None) -> None:
    if found is not None or not (names := corpus.shard_files(corpus_dir)):
        return
    if corpus.exists(corpus_dir):
        raise ConfigError(
            f"config.data.corpus_dir={corpus_dir!r} has just been prepared by another"
            " process; rerun this command to use it"
        )
    raise ConfigError(
        f"config.data.corpus_dir={corpus_dir!r} has {names[0]} but no"
        f" {corpus.MANIFEST}, so it is incomplete; give an empty directory"
    )


@contextlib.contextmanager
def _locked(corpus_dir: str, state: str) -> Iterator[None]:
    """Creates and locks the directories; the lock is released when the process ends."""
    try:
        storage.make_directory(corpus_dir)
        os.makedirs(state, exist_ok=True)
        lock = open(os.path.join(state, "lock"), "w")
    except OSError as error:
        raise ConfigError(
            f"config.data.corpus_dir={corpus_dir!r} is not writable ({error}); give a"
            " writable directory"
        ) from None
    with lock:
        if not storage.acquire(lock.fileno()):
            raise ConfigError(
                f"config.data.corpus_dir={corpus_dir!r} is being prepared by another"
                " process; wait until it has finished"
            )
        with _leased(corpus_dir):
            yield


@contextlib.contextmanager
def _leased(corpus_dir: str) -> Iterator[None]:
    """Locks a corpus in a bucket, which other hosts may prepare as well."""
    if not storage.is_remote(corpus_dir):
        yield
        return
    what = f"config.data.corpus_dir={corpus_dir!r}"
    lock = lease.Lease(f"{corpus_dir}/{LEASE_DIRECTORY}", lease.exit_when_lost(what))
    if holder := lock.acquire():
        raise ConfigError(
            f"{what} is being prepared by {holder}; wait until it has finished"
        )
    try:
        yield
    finally:
        lock.release()
    # The corpus is finished.
    storage.remove_directory(f"{corpus_dir}/{LEASE_DIRECTORY}")


def _facts(state: str) -> dict[str, Any] | None:
    """Returns "made_directory" and "scratch" of unfinished work; None if there is none.

    "made_directory" is whether `opened` created the corpus directory.
    """
    return _read_json(os.path.join(state, _FACTS))


def _read_json(path: str) -> dict[str, Any] | None:
    try:
        with open(path, encoding="utf-8") as file:
            return json.load(file)
    except (FileNotFoundError, NotADirectoryError):
        return None


def _remove_temporary_files(corpus_dir: str, scratch: str) -> None:
    """Removes temporary files of writes that were interrupted."""
    for directory, _, names in os.walk(scratch):
        for name in filter(storage.is_temporary, names):
            os.remove(os.path.join(directory, name))
    for name in storage.names(corpus_dir):
        if storage.is_temporary(name):
            storage.remove(os.path.join(corpus_dir, name))


def _discard(corpus_dir: str) -> None:
    """Removes all work, and the corpus directory if `opened` created it."""
    facts = _facts(_state(corpus_dir))
    remove_shards(corpus_dir)
    remove(corpus_dir)
    if facts and facts["made_directory"] and not storage.names(corpus_dir):
        storage.remove_directory(corpus_dir)
