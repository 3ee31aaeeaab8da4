"""SHA256SUMS: what the files of a directory held when they were written.

Orbax and safetensors give back a flipped bit as it is, so whoever reads a directory of
weights compares its files first. The form is that of `sha256sum`, whose option -c
checks a copy anywhere.
"""

import hashlib
from collections.abc import Callable
from concurrent import futures
from pathlib import Path

from bert_jax import storage

SUMS_FILE = "SHA256SUMS"
# hashlib lets other threads run meanwhile; storage is read by several at once.
NUM_THREADS = 4


def seal(directory: Path, is_left_out: Callable[[str], bool] | None = None) -> None:
    """Writes the digests of all files under a directory, beside them.

    Args:
      directory: whose files will not change any more.
      is_left_out: of a file's path in the directory, whether it has no digest.
    """
    names = [
        name
        for path in sorted(directory.rglob("*"))
        if path.is_file() and (name := path.relative_to(directory).as_posix())
        if name != SUMS_FILE and not (is_left_out and is_left_out(name))
    ]
    lines = (f"{digest}  {name}\n" for name, digest in _digests(directory, names))
    storage.write(str(directory / SUMS_FILE), "".join(lines).encode())


def damage(
    directory: Path, is_left_out: Callable[[str], bool] | None = None
) -> list[str]:
    """Returns what is not as it was written, in words; nothing where all is.

    Args:
      directory: that was sealed.
      is_left_out: as of `seal`; other files and links without a digest are wrong. None
        for a directory in which people may put what they like.
    """
    try:
        text = (directory / SUMS_FILE).read_text()
    except FileNotFoundError:
        return [f"{SUMS_FILE} is missing"]
    except UnicodeDecodeError:
        return [f"{SUMS_FILE} is damaged"]
    expected = {}
    *lines, rest = text.split("\n")  # there are other characters that end a line
    for line in lines:
        digest, _, name = line.partition("  ")
        path = Path(name)
        if len(digest) != 64 or not name or path.is_absolute() or ".." in path.parts:
            return [f"{SUMS_FILE} is damaged"]
        expected[name] = digest
    if not expected or rest:
        return [f"{SUMS_FILE} is damaged"]
    there = [name for name in expected if (directory / name).is_file()]
    wrong = [f"{name} is missing" for name in expected if name not in there]
    for name, digest in _digests(directory, there):
        if digest != expected[name]:
            wrong.append(f"{name} is not what was written")
    if is_left_out is not None:
        for path in sorted(directory.rglob("*")):
            name = path.relative_to(directory).as_posix()
            is_known = name in expected or name == SUMS_FILE or is_left_out(name)
            if not is_known and (path.is_symlink() or path.is_file()):
                wrong.append(f"{name} is none of its files")
    return wrong


def sha256(path: Path) -> str:
    """Returns the digest of a file, in hexadecimal."""

    def once() -> str:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    return storage.retried(once, str(path))


def _digests(directory: Path, names: list[str]) -> list[tuple[str, str]]:
    paths = (directory / name for name in names)
    with futures.ThreadPoolExecutor(NUM_THREADS) as pool:
        return list(zip(names, pool.map(sha256, paths), strict=True))
