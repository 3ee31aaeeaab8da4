"""Work directories of an unfinished corpus, from which `prepare` resumes.

`unfinished/` in the corpus directory has the lock, the results of finished shards and,
on a local disk or if several machines share the work, all other work, which is about as
large as the corpus. Otherwise that is in a private directory in the system's temporary
directory, or in --scratch_dir. The path of a private directory is derived from that of
the corpus, which its mark repeats: a directory without this mark is neither used nor
removed.

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

import psutil

from bert_jax import small_files, storage
from bert_jax.data.corpus import corpus
from bert_jax.data.tokenizers.sentencepiece import SentencePiece
from bert_jax.data.tokenizers.wordpiece import WordPiece
from bert_jax.errors import ConfigError, CorruptError, StorageError
from bert_jax.storage import lease

NAME = "unfinished"
LEASE_DIRECTORY = "lock"  # in a bucket
MARK = "work.json"  # the path of the corpus, and a random id
_SETTINGS = "settings.json"
_LOCK = "lock"
# Network file systems, on which many small reads and renames are slow.
_NETWORK = {
    *("9p", "afs", "beegfs", "ceph", "cifs", "fhgfs", "glusterfs", "gpfs"),
    *("lustre", "nfs", "nfs4", "panfs", "smb3", "wekafs"),
}
# FUSE file systems on a local disk. Any other one may be a mounted bucket.
_LOCAL_FUSE = {"fuse.fuse-overlayfs", "fuse.ntfs-3g"}


@contextlib.contextmanager
def opened(
    corpus_dir: str, scratch_dir: str | None = None, is_shared: bool = False
) -> Iterator[str]:
    """Locks the work on a corpus, and yields its scratch directory.

    If a ConfigError is raised before any stage has content, all directories are
    removed. After any other error the work is kept.

    Args:
      scratch_dir: parent of the scratch directory; None for the default.
      is_shared: whether processes on other machines use the scratch directory.
    """
    unfinished = shared(corpus_dir)
    scratch = unfinished if is_shared else _scratch_path(corpus_dir, scratch_dir)
    _check_no_other_shards(corpus_dir)
    is_new = not storage.exists(corpus_dir)
    if scratch != unfinished:
        _make_private(scratch, corpus_dir)
    with _locked(corpus_dir):
        try:  # checked again: the process that held the lock may have finished
            _check_no_other_shards(corpus_dir)
        except ConfigError:
            storage.remove_directory(unfinished)
            raise
        _mark(unfinished, corpus_dir)
        if scratch != unfinished:
            _mark(scratch, corpus_dir)
            free = shutil.disk_usage(scratch).free / 1e9
            print(f"scratch: {scratch} ({free:,.0f} GB free)", flush=True)
        _remove_temporary_files(corpus_dir, scratch)
        try:
            yield scratch
        except CorruptError:
            raise  # with its own advice
        except ConfigError as error:
            if has_work(corpus_dir, scratch):
                raise type(error)(
                    f"{error} (finished work is kept in {scratch}: correct this and"
                    " rerun the same command to resume)"
                ) from None
            remove_shards(corpus_dir)
            remove(corpus_dir, scratch_dir)
            if is_new and not storage.names(corpus_dir):
                storage.remove_directory(corpus_dir)
            raise
        # Writes that a bucket rejected also leave temporary files.
        _remove_temporary_files(corpus_dir, scratch)


def stage(
    directory: str,
    name: str,
    settings: dict[str, Any],
    *,
    compatible: dict[str, Any] | None = None,
    on_reset: Callable[[], None] = lambda: None,
) -> str:
    """Returns the directory of a stage, emptied if its settings have changed.

    Content for `compatible`, other settings, is kept. `on_reset` is called before the
    directory is emptied.
    """
    path = os.path.join(directory, name)
    settings, compatible = json.loads(json.dumps([settings, compatible]))
    before = _read_json(os.path.join(path, _SETTINGS), path)
    if before != settings:
        if before is None or before != compatible:
            on_reset()
            if storage.exists(path):
                storage.remove_directory(path)
        storage.make_directory(path)
        small_files.write_json(os.path.join(path, _SETTINGS), settings)
    return path


def has_work(corpus_dir: str, scratch: str) -> bool:
    return any(
        os.path.dirname(path) and os.path.basename(path) != _SETTINGS
        for directory in (shared(corpus_dir), scratch)
        for path in storage.files(directory)
    )


def remove(corpus_dir: str, scratch_dir: str | None = None) -> None:
    """Removes the work directories of a finished corpus, if they exist."""
    unfinished, scratch = shared(corpus_dir), _scratch_path(corpus_dir, scratch_dir)
    with contextlib.suppress(OSError, ConfigError, StorageError):
        if scratch != unfinished and _is_own(scratch, corpus_dir):
            shutil.rmtree(scratch)
    with contextlib.suppress(OSError, StorageError):
        if not os.path.islink(unfinished):
            storage.remove_directory(unfinished)


def remove_shards(corpus_dir: str) -> None:
    for name in corpus.shard_files(corpus_dir):
        storage.remove(os.path.join(corpus_dir, name))


# ----------------------------------------------------------------- the directories


def shared(corpus_dir: str) -> str:
    return os.path.join(corpus_dir, NAME)


def _scratch_path(corpus_dir: str, scratch_dir: str | None) -> str:
    """Returns the directory of all work but the results of shards."""
    if not scratch_dir:
        is_remote = storage.is_remote(corpus_dir)
        if not is_remote and not is_networked(shared(corpus_dir)):
            return shared(corpus_dir)
        scratch_dir = tempfile.gettempdir()
    digest = hashlib.sha256(_identity(corpus_dir).encode()).hexdigest()[:16]
    return os.path.join(
        os.path.abspath(scratch_dir), f"bert_jax-{os.geteuid()}-{digest}"
    )


def is_networked(path: str) -> bool:
    """Returns whether a path is on a network or FUSE file system, such as a bucket."""
    path, best, kind = os.path.realpath(path), -1, ""
    for mount in psutil.disk_partitions(all=True):
        point = mount.mountpoint
        is_above = path == point or path.startswith(point.rstrip("/") + "/")
        if is_above and len(point) >= best:  # a later mount hides an earlier one
            best, kind = len(point), mount.fstype
    is_fuse = kind.partition(".")[0] == "fuse" and kind not in _LOCAL_FUSE
    return kind in _NETWORK or is_fuse


def _identity(corpus_dir: str) -> str:
    is_remote = storage.is_remote(corpus_dir)
    return corpus_dir if is_remote else os.path.realpath(corpus_dir)


def _is_own(private: str, corpus_dir: str) -> bool:
    """Returns whether a private directory is there and may be removed."""
    if not os.path.lexists(private) or storage.why_not_private(private):
        return False
    mark = _read_json(os.path.join(private, MARK), private) or {}
    return mark.get("corpus") == _identity(corpus_dir)


def _mark(directory: str, corpus_dir: str) -> None:
    path = os.path.join(directory, MARK)
    if not storage.exists(path):
        mark = {"corpus": _identity(corpus_dir), "id": secrets.token_hex(8)}
        small_files.write_json(path, mark)


def _make_private(path: str, corpus_dir: str) -> None:
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        storage.private_directory(path)
    except OSError as error:
        raise ConfigError(
            f"--scratch_dir={os.path.dirname(path)} is not writable ({error}); give a"
            " writable directory on a local disk"
        ) from None
    names = {name for name in os.listdir(path) if not storage.is_temporary(name)}
    if names and not _is_own(path, corpus_dir):
        raise ConfigError(
            f"{path} has other files than work on {corpus_dir}; remove it, or give"
            " another --scratch_dir"
        )


def _check_no_other_shards(corpus_dir: str) -> None:
    if corpus.exists(corpus_dir):
        raise ConfigError(
            f"config.data.corpus_dir={corpus_dir!r} has just been prepared by another"
            " process; rerun this command to use it"
        )
    names = corpus.shard_files(corpus_dir)
    if names and not storage.exists(os.path.join(shared(corpus_dir), MARK)):
        raise ConfigError(
            f"config.data.corpus_dir={corpus_dir!r} has {names[0]} but no"
            f" {corpus.MANIFEST}, so it is incomplete; give an empty directory"
        )


def is_written_for(path: str, corpus_dir: str) -> bool:
    """Returns whether a file has the name of one that `prepare` writes for a corpus."""
    root = storage.absolute(corpus_dir)
    parent, name = os.path.split(storage.absolute(path))
    if parent == root:
        named = corpus.MANIFEST, WordPiece.FILE, SentencePiece.FILE
        return name in named or corpus.is_shard_file(name)
    work = [NAME, *[LEASE_DIRECTORY] * storage.is_remote(corpus_dir)]
    return f"{parent}/".startswith(tuple(f"{root}/{name}/" for name in work))


@contextlib.contextmanager
def _locked(corpus_dir: str) -> Iterator[None]:
    """Creates and locks the corpus directory.

    The kernel releases the lock when the process ends; in a bucket it expires.
    """
    what = f"config.data.corpus_dir={corpus_dir!r}"
    if storage.is_remote(corpus_dir):
        directory = f"{corpus_dir}/{LEASE_DIRECTORY}"
        lock = lease.Lease(directory, what)
        if holder := lock.acquire():
            raise ConfigError(
                f"{what} is being prepared by {holder}; wait until it has finished"
            )
        try:
            yield
        finally:
            lock.release()
        storage.remove_directory(directory)  # the corpus is finished
        return
    unfinished = shared(corpus_dir)
    try:
        os.makedirs(unfinished, exist_ok=True)
        if os.path.islink(unfinished):
            raise ConfigError(
                f"{unfinished} is a link; remove it, and give --scratch_dir=DIR to keep"
                " the work on another disk"
            )
        file = storage.open_own(os.path.join(unfinished, _LOCK), "a")
    except OSError as error:
        raise ConfigError(
            f"{what} is not writable ({error}); give a writable directory"
        ) from None
    with file:
        if not storage.acquire(file.fileno()):
            raise ConfigError(
                f"{what} is being prepared by another process; wait until it has"
                " finished"
            )
        yield


def _read_json(path: str, directory: str) -> dict[str, Any] | None:
    if not storage.exists(path):
        return None
    return small_files.read_json(path, f"remove {directory} to start over")


def _remove_temporary_files(corpus_dir: str, scratch: str) -> None:
    """Removes temporary files of writes that were interrupted, and refuses links."""
    for root in {shared(corpus_dir), scratch}:
        for parent, directories, files in os.walk(root):
            for name in (*directories, *files):
                path = os.path.join(parent, name)
                if os.path.islink(path):
                    raise ConfigError(f"{path} is a link; remove {root} to start over")
                if storage.is_temporary(name):
                    os.remove(path)
    for name in storage.names(corpus_dir):
        if storage.is_temporary(name):
            storage.remove(os.path.join(corpus_dir, name))
