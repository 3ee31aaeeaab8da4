"""Local and bucket files: atomic writes, and retries after transient errors.

A path with a scheme:// is that of an object in a bucket, see buckets.py, or on the
Hugging Face Hub, see hub.py; Python opens all others. retries.py describes errors.
"""

import atexit
import contextlib
import functools
import glob as local_glob
import os
import re
import shutil
import stat as stat_lib
import tempfile
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent import futures
from typing import Any, NamedTuple, TypeVar

from bert_jax import hub
from bert_jax.errors import MissingObjectError
from bert_jax.storage.buckets import file_system as file_system
from bert_jax.storage.buckets import is_remote as is_remote
from bert_jax.storage.buckets import parse_path as parse_path
from bert_jax.storage.own_files import acquire as acquire
from bert_jax.storage.own_files import open_own as open_own
from bert_jax.storage.own_files import private_directory as private_directory
from bert_jax.storage.own_files import why_not_private as why_not_private
from bert_jax.storage.reader import Reader as Reader
from bert_jax.storage.reader import read_ranges as read_ranges
from bert_jax.storage.retries import USERS_ERRORS as USERS_ERRORS
from bert_jax.storage.retries import error_number as error_number
from bert_jax.storage.retries import full_disk as full_disk
from bert_jax.storage.retries import is_full_disk as is_full_disk
from bert_jax.storage.retries import is_transient as is_transient
from bert_jax.storage.retries import raise_storage_errors as raise_storage_errors
from bert_jax.storage.retries import with_retries as with_retries

T = TypeVar("T")
_scratch = contextlib.ExitStack()  # temporary directories of this process
# A stat of a file on a network file system or in a bucket takes milliseconds.
STAT_THREADS = 32
TRANSFER_THREADS = 8


def absolute(path: str) -> str:
    """Returns the absolute path of a local file, and a URL as it is."""
    return path if is_remote(path) else os.path.abspath(path)


# -------------------------------------------------------------------------- reading


def read(path: str) -> bytes:
    """Returns the contents of a file; raises errors like `with_retries`."""

    def once() -> bytes:
        if is_remote(path):
            return file_system(path).cat_file(path)
        with open(path, "rb") as file:
            return file.read()

    return with_retries(once, path)


def exists(path: str) -> bool:
    """Returns whether there is a file or directory; any prefix is one in a bucket."""

    def once() -> bool:
        if is_remote(path):
            return file_system(path).exists(path)
        try:
            os.stat(path)
        except OSError as error:
            if is_transient(error):
                raise
            return False
        return True

    return with_retries(once, path)


def names(directory: str) -> list[str]:
    """Returns the names in a directory, in arbitrary order; none if it is missing."""
    if not is_remote(directory):
        if not exists(directory):
            return []
        return with_retries(lambda: os.listdir(directory), directory)

    def once() -> list[str]:
        try:
            return file_system(directory).ls(directory, detail=False)
        except FileNotFoundError:
            return []

    names = (os.path.basename(path) for path in with_retries(once, directory))
    return [name for name in names if name]  # "" is a placeholder for the directory


def files(directory: str) -> list[str]:
    """Returns the sorted paths, relative to a directory, of all files under it.

    Links are files. A missing directory has none.
    """
    if not is_remote(directory):
        paths: list[str] = []
        for parent, directories, names in os.walk(directory):
            links = (os.path.join(parent, name) for name in directories)
            paths += filter(os.path.islink, links)
            paths += (os.path.join(parent, name) for name in names)
        return sorted(os.path.relpath(path, directory) for path in paths)
    paths = with_retries(lambda: file_system(directory).find(directory), directory)
    prefix = directory.partition("://")[2].rstrip("/") + "/"
    names = (path.removeprefix(prefix) for path in paths)
    return sorted(name for name in names if name and not name.endswith("/"))


def glob(pattern: str) -> list[str]:
    """Returns the paths that match a pattern; ** matches any number of directories."""
    if not is_remote(pattern):
        return local_glob.glob(pattern, recursive=True)
    paths = with_retries(lambda: file_system(pattern).glob(pattern), pattern)
    scheme = pattern.partition("://")[0]
    return [f"{scheme}://{path}" for path in paths]


class Stat(NamedTuple):
    num_bytes: int
    changed_ns: int
    is_file: bool = True  # not a directory, or the prefix of objects in a bucket


def stat(path: str) -> Stat:
    """Returns the size and modification time of a file."""
    if not is_remote(path):
        status = with_retries(lambda: os.stat(path), path)
        is_file = stat_lib.S_ISREG(status.st_mode)
        return Stat(status.st_size, status.st_mtime_ns, is_file)
    info = with_retries(lambda: file_system(path).info(path), path)
    if info["type"] == "directory":
        return Stat(0, 0, is_file=False)
    if path.startswith(hub.SCHEME):  # the URL has a commit, so the file never changes
        return Stat(info["size"], 0)
    changed = info.get("mtime") or info.get("LastModified")  # of gcsfs, of s3fs
    if changed is None:
        changed = with_retries(lambda: file_system(path).modified(path), path)
    return Stat(info["size"], round(changed.timestamp() * 1e9))


def stat_all(paths: Sequence[str]) -> list[Stat | None]:
    """Returns `stat` of each path, None if it is a broken link or not a file."""

    def stat_file(path: str) -> Stat | None:
        try:
            file = stat(path)
        except OSError:
            if is_remote(path):
                raise
            return None
        return file if file.is_file else None

    return in_threads(stat_file, paths)


def in_threads(
    do: Callable[..., T], *items: Iterable[Any], num_threads: int = STAT_THREADS
) -> list[T]:
    """Returns the results of `map`, from threads: requests to storage take long."""
    with futures.ThreadPoolExecutor(num_threads) as pool:
        return list(pool.map(do, *items))


# -------------------------------------------------------------------------- writing


def write(path: str, data: bytes) -> None:
    """Writes a file atomically: the path has the complete file or does not change."""
    if is_remote(path):
        return with_retries(lambda: file_system(path).pipe_file(path, data), path)

    def fill(tmp: str) -> None:
        with open_own(tmp, "xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())

    return write_with(path, fill)


def create(path: str, data: bytes) -> bool:
    """Writes an object of a bucket unless it exists; returns whether it was written.

    Of several processes that create the same object, one gets True. After an error,
    the object may have been written: a retry then finds the data that it would write.
    """

    def once() -> bool:
        try:
            file_system(path).pipe_file(path, data, mode="create")
        except FileExistsError:
            return file_system(path).cat_file(path) == data
        return True

    return with_retries(once, path)


def write_with(path: str, fill: Callable[[str], T]) -> T:
    """Writes a file atomically with a function that writes to a local temporary path.

    `fill` is called again after transient errors.
    """

    def once() -> T:
        with replacing(path) as tmp:
            return fill(tmp)

    def upload() -> T:
        with tempfile.TemporaryDirectory() as directory:
            tmp = os.path.join(directory, os.path.basename(path))
            result = fill(tmp)
            file_system(path).put_file(tmp, path)  # appears when it is complete
        return result

    return with_retries(upload if is_remote(path) else once, path)


@contextlib.contextmanager
def replacing(path: str) -> Iterator[str]:
    """Yields a temporary path of a file, renamed to `path` unless an error occurs."""
    # Each attempt has its own name, because two processes may write the same file.
    tmp = f"{path}.{uuid.uuid4().hex}.tmp"
    try:
        yield tmp
        os.replace(tmp, path)
    except BaseException:
        with contextlib.suppress(Exception):  # the first error is raised
            _remove(tmp)
        raise


def is_temporary(name: str) -> bool:
    """Returns whether a name is that of a temporary file of `replacing`."""
    return re.fullmatch(r".+\.[0-9a-f]{32}\.tmp", name) is not None


def make_directory(path: str) -> None:
    """Makes a directory and its parents, if they do not exist; buckets need none."""
    if not is_remote(path):
        with_retries(lambda: os.makedirs(path, exist_ok=True), path)


@contextlib.contextmanager
def local_copy(path: str) -> Iterator[str]:
    """Yields a path at which libraries without buckets can read a file.

    It is the path itself for a local file, and a temporary copy of an object.
    """
    if not is_remote(path):
        yield path
        return
    with tempfile.TemporaryDirectory() as directory:
        copy = os.path.join(directory, os.path.basename(path))
        with_retries(lambda: file_system(path).get_file(path, copy), path)
        yield copy


def scratch_directory() -> str:
    """Makes a local directory that is removed when the process exits."""
    path = tempfile.mkdtemp(prefix="bert_jax-")
    _scratch.callback(shutil.rmtree, path, ignore_errors=True)
    return path


@atexit.register
def remove_scratch() -> None:
    """Removes the directories of `scratch_directory`."""
    _scratch.close()


def download(directory: str, target: str, is_wanted: Callable[[str], bool]) -> None:
    """Copies files of a directory in a bucket, by their paths in it, to a local one."""
    system = file_system(directory)

    def fetch(name: str) -> None:
        url, path = f"{directory}/{name}", os.path.join(target, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with_retries(lambda: system.get_file(url, path), url)

    in_threads(fetch, filter(is_wanted, files(directory)), num_threads=TRANSFER_THREADS)


def upload(directory: str, target: str, last: Sequence[str] = ()) -> None:
    """Copies the files of a local directory to one in a bucket; ends with `last`."""
    system = file_system(target)

    def put(name: str) -> None:
        url, path = f"{target}/{name}", os.path.join(directory, name)
        with_retries(lambda: system.put_file(path, url), url)

    first = (name for name in files(directory) if name not in last)
    in_threads(put, first, num_threads=TRANSFER_THREADS)
    for name in last:
        put(name)


def remove(path: str) -> None:
    """Removes a file, if it exists."""
    with_retries(lambda: _remove(path), path)


def remove_directory(path: str) -> None:
    """Removes a directory and its contents; a missing local one is an error."""
    if not is_remote(path):
        shutil.rmtree(path)
        return
    with contextlib.suppress(MissingObjectError):  # without objects, there is none
        with_retries(lambda: file_system(path).rm(path, recursive=True), path)


def move_directory(path: str, target: str) -> None:
    """Renames a directory; in a bucket its objects are copied and then removed."""
    if not is_remote(path):
        os.rename(path, target)
        return
    system = file_system(path)
    for name in files(path):
        urls = f"{path}/{name}", f"{target}/{name}"
        with_retries(functools.partial(system.cp_file, *urls), urls[0])
    remove_directory(path)


def _remove(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        if is_remote(path):
            file_system(path).rm_file(path)
        else:
            os.remove(path)
