"""What the directory of any trained model has: files inside it, and their digests.

SHA256SUMS is what `sha256sum` writes and `sha256sum --check` reads: neither safetensors
nor a JSON file would tell of a flipped bit by itself.
"""

import dataclasses
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from bert_jax import digests, storage
from bert_jax.errors import ConfigError, DamagedError

_WEIGHTS = re.compile(r"\.safetensors$|\.index$|\.data-\d+-of-\d+$")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Source:
    """A trained model, opened: what is known of it before its weights are read.

    Attributes:
      directory: where it is.
      sizes: its values of `config.model`'s keys and vocab_size, as far as it says, and
        of keys of its own.
      lowercase: whether its tokenizer lower-cases; None when it does not say.
      shapes: of its tensors that are parameters of ours, by our names, in our layout.
      unused: its names of the others.
      vocabulary: what its tokenizer's file holds; None when it has none.
      vocabulary_path: that file, or where it should be; of another kind of tokenizer
        where it has only that.
      read: returns those tensors as float32 arrays, by our names, in our layout.
      notes: a line each on what it does not say.
    """

    directory: Path
    sizes: dict[str, Any]
    lowercase: bool | None
    shapes: dict[str, tuple[int, ...]]
    unused: tuple[str, ...]
    vocabulary: bytes | None
    vocabulary_path: Path
    read: Callable[[], dict[str, np.ndarray]]
    notes: tuple[str, ...] = ()


def file(directory: Path, name: str) -> Path:
    """Returns the path of a file of the directory.

    Raises:
      ConfigError: when it is missing, or its name or a link leads elsewhere.
    """
    if Path(name).name != name:
        raise ConfigError(f"{directory}: {name!r} leads out of its directory")
    return nested_file(directory, name)


def nested_file(directory: Path, name: str) -> Path:
    """Returns the path of a file of the directory or of one in it.

    Raises:
      ConfigError: as `file`.
    """
    inside = Path(name)
    if not name.isprintable() or inside.is_absolute() or ".." in inside.parts:
        raise ConfigError(f"{directory}: {name!r} leads out of its directory")
    path = directory / name
    refuse_link_outside(path, directory)
    if not path.is_file():
        raise DamagedError(f"{path} is missing; fetch it again")
    return path


def read(directory: Path, name: str) -> bytes:
    """Returns what a tokenizer's file of the directory holds.

    Raises:
      ConfigError: as `file`, or when it is larger than any such file.
    """
    path = file(directory, name)
    storage.check_size(path)
    return path.read_bytes()


def refuse_link_outside(path: Path, directory: Path) -> None:
    """Raises ConfigError when a path in the directory is a link that leaves it.

    Hugging Face's cache is let be: models--NAME/snapshots/REVISION has links into
    models--NAME/blobs.
    """
    root, target = directory.resolve(), path.resolve()
    cache = root.parent.parent / "blobs" if root.parent.name == "snapshots" else None
    if not target.is_relative_to(root) and target.parent != cache:
        raise ConfigError(
            f"{path} is a link to {target}, outside of its directory; copy the file"
            " there if you trust it"
        )


def write_digests(directory: Path) -> None:
    """Writes SHA256SUMS of all files in the directory."""
    digests.seal(directory)


def verify_digests(directory: Path) -> None:
    """Holds every file against SHA256SUMS, if the directory has one.

    Raises:
      ConfigError: when a file is missing or another than was written, or weights are
        not listed.
    """
    sums = directory / digests.SUMS_FILE
    if not os.path.lexists(sums):
        return
    lines = (
        file(directory, digests.SUMS_FILE).read_text("utf-8", "replace").splitlines()
    )
    verified = set()
    for number, line in enumerate(lines, start=1):
        digest, separator, name = line.partition(" ")
        if not separator or len(digest) != 64:
            raise DamagedError(f"{sums}:{number} is no digest and file; fetch it again")
        path = nested_file(directory, re.sub(r"^[ *]?(\./)*", "", name))
        if digests.sha256(path) != digest.lower():
            raise DamagedError(
                f"{path} is not the file that {digests.SUMS_FILE} tells of; fetch it"
                f" again, or remove {digests.SUMS_FILE} if you changed it yourself"
            )
        verified.add(path.relative_to(directory).as_posix())
    for path in sorted(directory.iterdir()):
        if _WEIGHTS.search(path.name) and path.name not in verified:
            raise DamagedError(f"{sums} does not list {path.name}; fetch both again")
