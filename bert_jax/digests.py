"""Writes and verifies SHA256SUMS, the digests of the files in a directory.

Orbax and safetensors do not detect a flipped bit, so the files of a directory of
weights are verified before they are read. The format is that of `sha256sum`, whose
option -c verifies a copy on any machine.
"""

import hashlib
import os
from collections.abc import Callable
from pathlib import PurePosixPath

from bert_jax import storage

SUMS_FILE = "SHA256SUMS"
# hashlib releases the GIL, and storage is faster with several readers.
NUM_THREADS = 4


def write_sums(
    directory: str | os.PathLike[str], is_excluded: Callable[[str], bool] | None = None
) -> None:
    """Writes SHA256SUMS for all files under a directory, or for those not excluded.

    Args:
      is_excluded: returns whether a file, given by its path in the directory, gets no
        digest.
    """
    directory = os.fspath(directory)
    names = [
        name
        for name in storage.files(directory)
        if name != SUMS_FILE and not (is_excluded and is_excluded(name))
    ]
    lines = (f"{digest}  {name}\n" for name, digest in _digests(directory, names))
    storage.write(f"{directory}/{SUMS_FILE}", "".join(lines).encode())


def verify(
    directory: str | os.PathLike[str],
    is_excluded: Callable[[str], bool] | None = None,
    sums: str | None = None,
) -> list[str]:
    """Verifies the files of a directory; returns a description of each problem.

    Args:
      is_excluded: as in `write_sums`; any other file or link without a digest is a
        problem. None accepts additional files.
      sums: the content of SHA256SUMS; None reads it.
    """
    directory = os.fspath(directory)
    found = set(storage.files(directory))
    if SUMS_FILE not in found:
        return [f"{SUMS_FILE} is missing"]
    try:
        if sums is None:
            sums = storage.read(f"{directory}/{SUMS_FILE}").decode()
    except UnicodeDecodeError:
        return [f"{SUMS_FILE} is corrupt"]
    expected = {}
    *lines, rest = sums.split("\n")  # splitlines also splits at other characters
    for line in lines:
        digest, _, name = line.partition("  ")
        path = PurePosixPath(name)
        is_outside = path.is_absolute() or ".." in path.parts
        # A flipped bit of a line's end joins two lines.
        if len(digest) != 64 or not name or not name.isprintable() or is_outside:
            return [f"{SUMS_FILE} is corrupt"]
        expected[name] = digest
    if not expected or rest:
        return [f"{SUMS_FILE} is corrupt"]
    present = [
        name
        for name in expected
        if name in found and not os.path.isdir(f"{directory}/{name}")  # a link
    ]
    problems = [f"{name} is missing" for name in expected if name not in present]
    for name, digest in _digests(directory, present):
        if digest != expected[name]:
            problems.append(f"{name} does not match its digest")
    if is_excluded is not None:
        for name in sorted(found - {SUMS_FILE, *expected}):
            if not is_excluded(name):
                problems.append(f"{name} has no digest")
    return problems


def sha256(path: str | os.PathLike[str]) -> str:
    """Returns the SHA-256 digest of a file in hexadecimal."""
    path = os.fspath(path)

    def once() -> str:
        with storage.Reader(path) if storage.is_remote(path) else open(path, "rb") as f:
            return hashlib.file_digest(f, "sha256").hexdigest()

    return storage.with_retries(once, path)


def _digests(directory: str, names: list[str]) -> list[tuple[str, str]]:
    paths = (f"{directory}/{name}" for name in names)
    found = storage.in_threads(sha256, paths, num_threads=NUM_THREADS)
    return list(zip(names, found, strict=True))
