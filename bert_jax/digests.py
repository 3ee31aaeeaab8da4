"""Writes and verifies SHA256SUMS, the digests of the files in a directory.

Orbax and safetensors do not detect a flipped bit, so the files of a directory of
weights are verified before they are read. The format is that of `sha256sum`, whose
option -c verifies a copy on any machine.
"""

import hashlib
from collections.abc import Callable
from concurrent import futures
from pathlib import Path

from bert_jax import storage

SUMS_FILE = "SHA256SUMS"
# hashlib releases the GIL, and storage is faster with several readers.
NUM_THREADS = 4


def write_sums(
    directory: Path, is_excluded: Callable[[str], bool] | None = None
) -> None:
    """Writes SHA256SUMS for all files under a directory.

    Args:
      directory: a directory whose files will not change any more.
      is_excluded: returns whether a file, given by its path in the directory, gets no
        digest.
    """
    names = [
        name
        for path in sorted(directory.rglob("*"))
        if path.is_file() and (name := path.relative_to(directory).as_posix())
        if name != SUMS_FILE and not (is_excluded and is_excluded(name))
    ]
    lines = (f"{digest}  {name}\n" for name, digest in _digests(directory, names))
    storage.write(str(directory / SUMS_FILE), "".join(lines).encode())


def verify(
    directory: Path, is_excluded: Callable[[str], bool] | None = None
) -> list[str]:
    """Verifies the files of a directory; returns a description of each problem.

    Args:
      directory: a directory with SHA256SUMS.
      is_excluded: as in `write_sums`; any other file or link without a digest is a
        problem. None accepts additional files.
    """
    try:
        text = (directory / SUMS_FILE).read_text()
    except FileNotFoundError:
        return [f"{SUMS_FILE} is missing"]
    except UnicodeDecodeError:
        return [f"{SUMS_FILE} is corrupt"]
    expected = {}
    *lines, rest = text.split("\n")  # splitlines also splits at other characters
    for line in lines:
        digest, _, name = line.partition("  ")
        path = Path(name)
        if len(digest) != 64 or not name or path.is_absolute() or ".." in path.parts:
            return [f"{SUMS_FILE} is corrupt"]
        expected[name] = digest
    if not expected or rest:
        return [f"{SUMS_FILE} is corrupt"]
    present = [name for name in expected if (directory / name).is_file()]
    problems = [f"{name} is missing" for name in expected if name not in present]
    for name, digest in _digests(directory, present):
        if digest != expected[name]:
            problems.append(f"{name} does not match its digest")
    if is_excluded is not None:
        for path in sorted(directory.rglob("*")):
            name = path.relative_to(directory).as_posix()
            is_known = name in expected or name == SUMS_FILE or is_excluded(name)
            if not is_known and (path.is_symlink() or path.is_file()):
                problems.append(f"{name} has no digest")
    return problems


def sha256(path: Path) -> str:
    """Returns the SHA-256 digest of a file in hexadecimal."""

    def once() -> str:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    return storage.with_retries(once, str(path))


def _digests(directory: Path, names: list[str]) -> list[tuple[str, str]]:
    paths = (directory / name for name in names)
    with futures.ThreadPoolExecutor(NUM_THREADS) as pool:
        return list(zip(names, pool.map(sha256, paths), strict=True))
