"""Work directories of an unfinished corpus, from which `prepare` resumes.

`unfinished/` in the corpus directory has the lock and, on a local disk, all other work,
which is about as large as the corpus. On a network or FUSE file system, the other work
is in a private directory in the system's temporary directory; for a corpus in a bucket,
the lock as well, and the bucket has another one. The path of a private directory is
derived from that of the corpus, which its mark repeats: a directory without this mark
is neither used nor removed. If other machines share the work, all of it is in
`unfinished/`, also in a bucket.

Each stage of the work has a subdirectory with a file that lists the settings on which
its content depends. A stage is emptied if these settings change.
"""

import contextlib
import hashlib
import json
import os
import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

from bert_jax import small_files, storage
from bert_jax.data.corpus import corpus, file_systems
from bert_jax.errors import ConfigError, StorageError
from bert_jax.storage import lease

NAME = "unfinished"
LEASE_DIRECTORY = "lock"  # in a bucket
# The path of the corpus, and a random id. A scratch directory whose id is not that of
# the lock's directory has earlier work, whose shards may have been replaced.
MARK = "work.json"
_MADE_FOR = "made_for.json"
_LOCK = "lock"


@contextlib.contextmanager
def opened(
    corpus_dir: str, scratch_dir: str | None = None, is_shared: bool = False
) -> Iterator[str]:
    """Locks the work on a corpus, and yields its scratch directory.

    If a ConfigError is raised before any stage has content, all directories are
    removed. After any other error the work is kept.

    Args:
      corpus_dir: the corpus directory, created if it does not exist.
      scratch_dir: parent of the scratch directory; None for the default.
      is_shared: whether processes on other machines use the scratch directory.

    Raises:
      ConfigError: when another process is preparing the corpus, a directory is not
        writable, or corpus_dir contains shards that do not belong to this work.
    """
    state = shared(corpus_dir) if is_shared else _state(corpus_dir)
    _check_no_other_shards(corpus_dir, state)
    is_new = not storage.exists(corpus_dir)
    with _locked(corpus_dir, state):
        try:  # checked again: the process that held the lock may have finished
            _check_no_other_shards(corpus_dir, state)
        except ConfigError:
            storage.remove_directory(state)
            raise
        path = state if is_shared else _scratch_path(corpus_dir, state, scratch_dir)
        scratch = _scratch(corpus_dir, state, path)
        _remove_temporary_files(corpus_dir, scratch)
        try:
            yield scratch
        except ConfigError:
            if not has_work(scratch):
                remove_shards(corpus_dir)
                remove(corpus_dir, scratch_dir)
                if is_new and not storage.names(corpus_dir):
                    storage.remove_directory(corpus_dir)
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
    found = _read_json(os.path.join(path, _MADE_FOR), path)
    if found != made_for:
        if found is None or fits is None or not fits(found):
            clear()
            if storage.exists(path):
                storage.remove_directory(path)
        storage.make_directory(path)
        _write_json(os.path.join(path, _MADE_FOR), made_for)
    return path


def has_work(scratch: str) -> bool:
    """Returns whether any stage has content."""
    return any(
        os.path.dirname(path) and os.path.basename(path) != _MADE_FOR
        for path in storage.files(scratch)
    )


def is_unfinished(corpus_dir: str) -> bool:
    """Returns whether a directory contains a corpus that `prepare` has not finished."""
    if corpus.exists(corpus_dir):
        return False
    marks = _state(corpus_dir), os.path.join(shared(corpus_dir), MARK)
    return any(map(storage.exists, marks)) or bool(corpus.shard_files(corpus_dir))


def remove(corpus_dir: str, scratch_dir: str | None = None) -> None:
    """Removes the work directories of a finished corpus, if they exist."""
    state = _state(corpus_dir)
    scratch = _scratch_path(corpus_dir, state, scratch_dir)
    for path in {scratch, state, shared(corpus_dir)}:
        if _is_own(path, corpus_dir):
            with contextlib.suppress(OSError, ConfigError, StorageError):
                storage.remove_directory(path)


def remove_shards(corpus_dir: str) -> None:
    """Removes all shards in a corpus directory."""
    for name in corpus.shard_files(corpus_dir):
        storage.remove(os.path.join(corpus_dir, name))


# ----------------------------------------------------------------- the directories


def shared(corpus_dir: str) -> str:
    """Returns the directory of all work that several machines share."""
    return os.path.join(corpus_dir, NAME)


def _state(corpus_dir: str) -> str:
    """Returns the directory of the lock."""
    if storage.is_remote(corpus_dir):
        return _private_path(tempfile.gettempdir(), corpus_dir)
    return shared(corpus_dir)


def _scratch_path(corpus_dir: str, state: str, scratch_dir: str | None) -> str:
    """Returns the directory of all other work."""
    if scratch_dir:
        return _private_path(os.path.abspath(scratch_dir), corpus_dir)
    if file_systems.is_networked(state):
        return _private_path(tempfile.gettempdir(), corpus_dir)
    return state


def _private_path(directory: str, corpus_dir: str) -> str:
    """Returns a path in `directory` that is unique to the corpus and this user."""
    digest = hashlib.sha256(_identity(corpus_dir).encode()).hexdigest()
    return os.path.join(directory, f"bert_jax-{os.geteuid()}-{digest[:16]}")


def _identity(corpus_dir: str) -> str:
    is_remote = storage.is_remote(corpus_dir)
    return corpus_dir if is_remote else os.path.realpath(corpus_dir)


def _is_inside(path: str, corpus_dir: str) -> bool:
    return path == shared(corpus_dir)


def _is_own(path: str, corpus_dir: str) -> bool:
    """Returns whether a directory is there and may be removed."""
    if _is_inside(path, corpus_dir):
        return storage.exists(path) and not os.path.islink(path)
    try:
        is_private = not storage.why_not_private(path)
    except FileNotFoundError:
        return False
    mark = _mark(path) if is_private else None
    return mark is not None and mark.get("corpus") == _identity(corpus_dir)


def _mark(directory: str) -> dict[str, Any] | None:
    """Returns the mark of a directory, None if it has none."""
    return _read_json(os.path.join(directory, MARK), directory)


def _make(path: str, corpus_dir: str) -> None:
    """Creates a work directory unless it exists.

    Raises:
      ConfigError: when it is a link, or belongs to another user, corpus or program.
    """
    if _is_inside(path, corpus_dir):
        os.makedirs(path, exist_ok=True)
        if os.path.islink(path):
            raise ConfigError(
                f"{path} is a link; remove it, and give --scratch_dir=DIR to keep the"
                " work on another disk"
            )
        return
    os.makedirs(os.path.dirname(path), exist_ok=True)
    storage.private_directory(path)
    others = {name for name in os.listdir(path) if not storage.is_temporary(name)}
    if others - {_LOCK} and not _is_own(path, corpus_dir):
        raise ConfigError(
            f"{path} has other files than work on {corpus_dir}; remove it, or give"
            " another --scratch_dir"
        )


def _scratch(corpus_dir: str, state: str, scratch: str) -> str:
    """Returns the scratch directory, which is empty unless its work can be resumed."""
    if scratch != state:
        try:
            _make(scratch, corpus_dir)
        except OSError as error:
            raise ConfigError(
                f"--scratch_dir={os.path.dirname(scratch)} is not writable ({error});"
                " give a writable directory on a local disk"
            ) from None
    mark, where = _mark(state), "" if scratch == state else scratch
    if mark is None or mark != _mark(scratch) or mark.get("scratch") != where:
        # The path is only compared: work in another directory is for other shards.
        mark = {"corpus": _identity(corpus_dir), "scratch": where}
        mark["id"] = secrets.token_hex(8)
        for name in storage.names(state):
            if os.path.isdir(stage := os.path.join(state, name)):
                shutil.rmtree(stage)
        if scratch != state:
            shutil.rmtree(scratch)
            storage.private_directory(scratch)
            _write_json(os.path.join(scratch, MARK), mark)
        _write_json(os.path.join(state, MARK), mark)
    if not _is_inside(scratch, corpus_dir):
        free = shutil.disk_usage(scratch).free / 1e9
        print(f"scratch: {scratch} ({free:,.0f} GB free)", flush=True)
    return scratch


def _check_no_other_shards(corpus_dir: str, state: str) -> None:
    if corpus.exists(corpus_dir):  # this host may have a mark of earlier work
        raise ConfigError(
            f"config.data.corpus_dir={corpus_dir!r} has just been prepared by another"
            " process; rerun this command to use it"
        )
    names = corpus.shard_files(corpus_dir)
    if not names or _mark(state) is not None:
        return
    raise ConfigError(
        f"config.data.corpus_dir={corpus_dir!r} has {names[0]} but no"
        f" {corpus.MANIFEST}, so it is incomplete; give an empty directory"
    )


@contextlib.contextmanager
def _locked(corpus_dir: str, state: str) -> Iterator[None]:
    """Creates and locks the directories; the lock is released when the process ends."""
    if storage.is_remote(state):
        with _leased(corpus_dir):
            yield
        return
    try:
        storage.make_directory(corpus_dir)
        _make(state, corpus_dir)
        lock = storage.open_own(os.path.join(state, _LOCK), "a")
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


def _read_json(path: str, directory: str) -> dict[str, Any] | None:
    if not storage.exists(path):
        return None
    return small_files.read_json(path, f"remove {directory} to start over")


def _write_json(path: str, value: dict[str, Any]) -> None:
    storage.write(path, json.dumps(value, indent=2).encode())


def _remove_temporary_files(corpus_dir: str, scratch: str) -> None:
    """Removes temporary files of writes that were interrupted.

    Raises:
      ConfigError: when there is a link, which would lead out of the work.
    """
    for parent, directories, files in os.walk(scratch):
        for name in (*directories, *files):
            path = os.path.join(parent, name)
            if os.path.islink(path):
                raise ConfigError(f"{path} is a link; remove {scratch} to start over")
            if storage.is_temporary(name):
                os.remove(path)
    for name in storage.names(corpus_dir):
        if storage.is_temporary(name):
            storage.remove(os.path.join(corpus_dir, name))
