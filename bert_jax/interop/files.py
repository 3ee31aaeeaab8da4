"""Reads and writes model directories: safe paths, digests, and atomic writes."""

import contextlib
import dataclasses
import functools
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bert_jax import digests, small_files, storage
from bert_jax.config import TokenizerKind
from bert_jax.data.tokenizers.base import Tokenizer
from bert_jax.errors import ConfigError, CorruptError
from bert_jax.interop.weight_names import Naming

_WEIGHTS = re.compile(r"\.safetensors$|\.index$|\.data-\d+-of-\d+$")
# A line of SHA256SUMS as sha256sum, its option --binary or other tools write it.
_LINE = re.compile(r"^([\da-fA-F]{64}) [ *]?(?:\./)*(.+?)\r?(?:\n|\Z)", re.MULTILINE)


@dataclasses.dataclass(frozen=True)
class SourceTokenizer:
    path: Path  # the file with its vocabulary
    lowercase: bool | None  # whether it lower-cases text; None if no file records it
    build: Callable[[bool], Tokenizer]  # builds it, given whether it lower-cases text
    # the content of the tokenizer file of a corpus for the model; None if such a corpus
    # cannot be prepared
    for_corpora: bytes | None
    kind: TokenizerKind = "wordpiece"  # of the tokenizer of such a corpus


@dataclasses.dataclass(frozen=True, kw_only=True)
class Source:
    """An opened model whose weights are not read yet."""

    directory: Path
    # the values of its config file, including vocab_size, under the names of
    # `config.model` where they exist
    sizes: dict[str, Any]
    tokenizer: SourceTokenizer | None
    naming: Naming  # of its tensors
    tensors: dict[str, tuple[int, ...]]  # the shapes of all tensors
    load: Callable[[list[str]], list[np.ndarray]]  # reads tensors by their names
    # a line for each setting that the model does not record
    notes: tuple[str, ...] = ()

    @functools.cached_property
    def names(self) -> dict[str, str]:
        """Our name of each parameter of our models -> the name of its tensor."""
        return self.naming.our_names(self.tensors)

    @functools.cached_property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of these tensors, by our names and in our layout."""
        return {
            ours: self.naming.lay_out_shape(ours, self.tensors[name])
            for ours, name in self.names.items()
        }

    def read(self, wanted: Collection[str]) -> dict[str, np.ndarray]:
        """Returns some parameters of `shapes` as float32 arrays."""
        arrays = self.load([self.names[ours] for ours in wanted])
        return {
            ours: self.naming.lay_out(ours, array.astype(np.float32, copy=False))
            for ours, array in zip(wanted, arrays, strict=True)
        }

    def unused(self, wanted: Collection[str]) -> list[str]:
        """Returns the names of the tensors that are not wanted parameters."""
        used = {name for ours, name in self.names.items() if ours in wanted}
        return sorted(self.tensors.keys() - used)


def file(directory: Path, name: str) -> Path:
    """Returns the path of a file in the directory itself."""
    if Path(name).name != name:
        raise ConfigError(f"{directory}: {name!r} points outside of its directory")
    return nested_file(directory, name)


def nested_file(directory: Path, name: str) -> Path:
    """Returns the path of a file in the directory or in a directory below it."""
    inside = Path(name)
    if not name.isprintable() or inside.is_absolute() or ".." in inside.parts:
        raise ConfigError(f"{directory}: {name!r} points outside of its directory")
    path = directory / name
    refuse_link_outside(path, directory)
    if not path.is_file():
        raise CorruptError(f"{path} is missing; download it again")
    return path


def read(directory: Path, name: str) -> bytes:
    """Returns the contents of a tokenizer or settings file in the directory."""
    path = file(directory, name)
    small_files.check_size(path)
    return path.read_bytes()


def optional_json(directory: Path, name: str) -> dict[str, Any]:
    """Returns the content of a JSON file in the directory, or {} if there is none."""
    if not os.path.lexists(directory / name):
        return {}
    return small_files.read_json(file(directory, name))


def refuse_link_outside(path: Path, directory: Path) -> None:
    """Raises ConfigError if a path in the directory is a link that points outside.

    Links of Hugging Face's cache are allowed: models--NAME/snapshots/REVISION has links
    to models--NAME/blobs.
    """
    root, target = directory.resolve(), path.resolve()
    cache = root.parent.parent / "blobs" if root.parent.name == "snapshots" else None
    if not target.is_relative_to(root) and target.parent != cache:
        raise ConfigError(
            f"{path} is a link to {target}, outside of its directory; copy the file"
            " there if you trust it"
        )


@contextlib.contextmanager
def new_directory(target: Path) -> Iterator[Path]:
    """Yields a directory that is renamed to `target` when it is complete.

    There may be an empty directory at `target`.
    """
    prefix = f".{target.name}.unfinished."  # hidden, so that it matches no user's
    tmp = Path(tempfile.mkdtemp(prefix=prefix, dir=target.parent))
    try:
        yield tmp
        tmp.chmod(0o755)  # mkdtemp gives access to the owner only
        os.replace(tmp, target)
    except BaseException as error:
        shutil.rmtree(tmp, ignore_errors=True)
        if storage.is_full_disk(error):  # the error of safetensors has no path
            raise storage.full_disk(str(target)) from error
        raise


def verify_digests(directory: Path) -> None:
    """Verifies SHA256SUMS, if a directory has one; it has to list the weights."""
    if not os.path.lexists(directory / digests.SUMS_FILE):
        return
    sums = read(directory, digests.SUMS_FILE).decode("utf-8", "replace")
    sums = _LINE.sub(lambda line: f"{line[1].lower()}  {line[2]}\n", sums)
    for name in re.findall(r"^.{64}  (.+)$", sums, re.MULTILINE):
        if os.path.lexists(directory / name):
            nested_file(directory, name)  # no device, and nothing outside, is read
    problems = digests.verify(
        directory, lambda name: "/" in name or not _WEIGHTS.search(name), sums
    )
    if problems:
        raise CorruptError(
            f"{directory}: {problems[0]}; download it again, or remove"
            f" {digests.SUMS_FILE} if you changed the files yourself"
        )


def check_fixed(
    values: Mapping[str, Any], fixed: Mapping[str, Any], path: Path
) -> None:
    """Raises ConfigError if a key has another value than the supported one."""
    for key, only in fixed.items():
        value = values.get(key, only)
        if isinstance(value, dict) and "content" in value:  # an added token
            value = value["content"]
        if value != only and (value or only):
            raise ConfigError(
                f"{path} has {key}={values[key]!r}; only {only!r} is supported"
            )
