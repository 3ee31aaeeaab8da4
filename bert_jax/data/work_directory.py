"""What an unfinished corpus is made in, so that a killed `prepare` can be taken up.

The directory stands inside the corpus directory; for a corpus in a bucket, under the
machine's temporary directory. It holds the runs, the facts of every shard that is
finished, and made_for.json, which says what all this belongs to: found again with
anything else, it is emptied.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from typing import Any

from bert_jax import storage
from bert_jax.config import ConfigError
from bert_jax.data import corpus

NAME = "unfinished"


@contextlib.contextmanager
def opened(corpus_dir: str, made_for: dict[str, Any]) -> Iterator[str]:
    """Gives the path of the work directory of a corpus to this process alone.

    It is removed with all else that was written when a ConfigError ends the work, and
    kept when anything else does.

    Args:
      corpus_dir: made if it is not there.
      made_for: JSON values; what is found was made for equal ones.

    Raises:
      ConfigError: when another process has it, or corpus_dir cannot be written or
        holds shards that are not of this work.
    """
    path = _path(corpus_dir)
    _refuse_shards_of_others(corpus_dir, _facts(path))
    facts = {
        "made_directory": not storage.exists(corpus_dir),
        "made_for": json.loads(json.dumps(made_for)),
    }
    with _locked(corpus_dir, path):
        found = _facts(path)
        try:  # again: who had the lock may have finished since
            _refuse_shards_of_others(corpus_dir, found)
        except ConfigError:
            shutil.rmtree(path)
            raise
        if found is None or found["made_for"] != facts["made_for"]:
            _start_afresh(corpus_dir, path, found or facts, facts["made_for"])
        _remove_leavings(corpus_dir, path)
        try:
            yield path
        except ConfigError:
            _discard(corpus_dir, path)
            raise
        _remove_leavings(corpus_dir, path)  # of writes that a bucket refused


def is_unfinished(corpus_dir: str) -> bool:
    """Returns whether `prepare` has begun a corpus there and not finished it."""
    if corpus.exists(corpus_dir):
        return False
    return os.path.exists(_path(corpus_dir)) or bool(corpus.shard_files(corpus_dir))


def remove(corpus_dir: str) -> None:
    """Removes the work directory of a finished corpus, if it is still there."""
    shutil.rmtree(_path(corpus_dir), ignore_errors=True)


def _path(corpus_dir: str) -> str:
    if "://" not in corpus_dir:
        return os.path.join(corpus_dir, NAME)
    name = "bert_jax-" + hashlib.sha256(corpus_dir.encode()).hexdigest()[:16]
    return os.path.join(tempfile.gettempdir(), name)


def _refuse_shards_of_others(corpus_dir: str, found: dict[str, Any] | None) -> None:
    if found is not None or not (names := corpus.shard_files(corpus_dir)):
        return
    if corpus.exists(corpus_dir):
        raise ConfigError(
            f"config.data.corpus_dir={corpus_dir!r} was prepared by another process in"
            " the meantime; call again to use it"
        )
    raise ConfigError(
        f"config.data.corpus_dir={corpus_dir!r} has {names[0]} but no"
        f" {corpus.MANIFEST}, so it is no whole corpus; name an empty directory"
    )


@contextlib.contextmanager
def _locked(corpus_dir: str, path: str) -> Iterator[None]:
    """Makes the directories and holds the work directory; a killed process lets go."""
    try:
        storage.make_directory(corpus_dir)
        os.makedirs(path, exist_ok=True)
        lock = open(os.path.join(path, "lock"), "w")
    except OSError as error:
        raise ConfigError(
            f"config.data.corpus_dir={corpus_dir!r} cannot be written ({error});"
            " name a directory that can"
        ) from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ConfigError(
                f"config.data.corpus_dir={corpus_dir!r} is being prepared by another"
                " process; wait until that is done"
            ) from None
        yield


def _facts(path: str) -> dict[str, Any] | None:
    """Returns whether we made the corpus directory, and what for; None if not known."""
    try:
        with open(os.path.join(path, "made_for.json")) as file:
            return json.load(file)
    except (FileNotFoundError, NotADirectoryError):
        return None


def _start_afresh(
    corpus_dir: str, path: str, found: dict[str, Any], made_for: dict[str, Any]
) -> None:
    """Removes all that was made for anything else; what for is forgotten last."""
    _remove_shards(corpus_dir)
    for name in os.listdir(path):
        if name not in ("lock", "made_for.json"):
            os.remove(os.path.join(path, name))
    facts = json.dumps(found | {"made_for": made_for}, indent=2)
    storage.write(os.path.join(path, "made_for.json"), facts.encode())


def _remove_shards(corpus_dir: str) -> None:
    for name in corpus.shard_files(corpus_dir):
        storage.remove(os.path.join(corpus_dir, name))


def _remove_leavings(corpus_dir: str, path: str) -> None:
    """Removes what was being written when a process was killed or storage failed."""
    for name in os.listdir(path):
        if name.endswith(".tmp"):
            os.remove(os.path.join(path, name))
    for name in storage.names(corpus_dir):
        if storage.is_temporary(name):
            storage.remove(os.path.join(corpus_dir, name))


def _discard(corpus_dir: str, path: str) -> None:
    facts = _facts(path)
    _remove_shards(corpus_dir)
    _remove_leavings(corpus_dir, path)
    shutil.rmtree(path)
    if facts and facts["made_directory"] and not storage.names(corpus_dir):
        storage.remove_directory(corpus_dir)
