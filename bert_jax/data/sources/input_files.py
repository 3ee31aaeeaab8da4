"""Resolves source specs to input files with their sizes and modification times.

`find` stats each file once and all files concurrently, so that thousands of files on a
slow file system take seconds. sources.py reads the files.
"""

import dataclasses
import glob
import importlib.metadata
import os
import sys
from typing import Any, NamedTuple

from bert_jax import storage
from bert_jax.data.sources import embedded
from bert_jax.errors import ConfigError

# Kinds whose argument is a glob pattern.
FILE_KINDS = ("text", "files", "jsonl", "parquet", "wikiextractor")
# Kinds whose pattern is followed by #field.
FIELD_KINDS = ("jsonl", "parquet")
KINDS = ("embedded", *FILE_KINDS, "tfds")
# gzip compresses English novels to 36% of their size, bzip2 to 26% (measured on 28 MB).
COMPRESSED_RATIO = 3
COMPRESSED = (".gz", ".bz2", ".xz", ".zst", ".parquet")


class InputFile(NamedTuple):
    """An input file, its size and its modification time."""

    path: str
    num_bytes: int  # on disk
    changed_ns: int

    @property
    def text_bytes(self) -> int:
        """Returns the estimated size of the decompressed text, in bytes."""
        is_compressed = self.path.endswith(COMPRESSED)
        return self.num_bytes * (COMPRESSED_RATIO if is_compressed else 1)


@dataclasses.dataclass(frozen=True)
class Source:
    """A source spec and its files.

    Attributes:
      spec: an item of config.data.sources.
      files: sorted by path; empty for `embedded:` and `tfds:`.
      version: identifies the text of a source without files; see `find`.
    """

    spec: str
    files: tuple[InputFile, ...]
    version: tuple[str, ...] = ()

    @property
    def text_bytes(self) -> int | None:
        """Returns the estimated size of the text in bytes; None if it is unknown."""
        if self.spec.startswith("tfds:"):
            return None
        return sum(file.text_bytes for file in self.files)

    @property
    def is_remote(self) -> bool:
        return self.spec.startswith("tfds:") or "://" in self.spec

    @property
    def format(self) -> str:
        """Returns the spec without its pattern; it determines how a file is read."""
        kind, argument = parse(self.spec)
        if kind not in FILE_KINDS:
            return self.spec
        return kind + argument.removeprefix(pattern(kind, argument))


def find(specs: tuple[str, ...]) -> tuple[Source, ...]:
    """Finds the files of each source.

    The version of `embedded:` is the version of Python and of each package that it
    reads. A `tfds:` source has no version: a change of the dataset is only detected
    when the spec names its version.

    Raises:
      ConfigError: when a spec is malformed or matches no file.
    """
    return tuple(map(_find_one, specs))


def _find_one(spec: str) -> Source:
    kind, argument = parse(spec)
    if kind in FIELD_KINDS and not argument.partition("#")[2]:
        raise ConfigError(
            f"config.data.sources has {spec!r}, which names no field;"
            f" write {spec}#text (or the field that contains the text)"
        )
    if kind in FILE_KINDS:
        return Source(spec, tuple(_files(pattern(kind, argument))))
    return Source(spec, (), _embedded_version() if kind == "embedded" else ())


def _embedded_version() -> tuple[str, ...]:
    installed = importlib.metadata.packages_distributions()
    names = {name for p in embedded.PACKAGES for name in installed.get(p, [])}
    versions = (f"{name} {importlib.metadata.version(name)}" for name in sorted(names))
    return (sys.version, *versions)


def total_bytes(found: tuple[Source, ...]) -> int | None:
    """Returns the estimated size of all text in bytes; None if a size is unknown."""
    sizes = [source.text_bytes for source in found]
    return None if None in sizes else sum(filter(None, sizes))


def changed_share(before: list[dict[str, Any]], found: tuple[Source, ...]) -> float:
    """Returns the share of the text that is in added, changed or removed files.

    Args:
      before: earlier sources, converted by `dataclasses.asdict` and stored as JSON.
      found: the sources now.

    Returns:
      A share in [0, 1]; 1 if the spec or version of any source differs.
    """
    if [(source["spec"], tuple(source["version"])) for source in before] != [
        (source.spec, source.version) for source in found
    ]:
        return 1.0
    old = {InputFile(*file) for source in before for file in source["files"]}
    new = {file for source in found for file in source.files}
    total = sum(file.text_bytes for file in old | new)
    return sum(file.text_bytes for file in old ^ new) / total if total else 0.0


def parse(spec: str) -> tuple[str, str]:
    """Splits a spec into its kind and its argument.

    Raises:
      ConfigError: when the spec is malformed.
    """
    kind, colon, argument = spec.partition(":")
    if kind not in KINDS or not colon or not (argument or kind == "embedded"):
        raise ConfigError(
            f"config.data.sources has {spec!r}; a source is one of embedded:,"
            " text:GLOB, files:GLOB, jsonl:GLOB#field, parquet:GLOB#column,"
            " wikiextractor:GLOB, tfds:NAME[:SPLIT][#field]"
        )
    return kind, argument


def pattern(kind: str, argument: str) -> str:
    """Returns the glob pattern in the argument of a spec."""
    return argument.partition("#")[0] if kind in FIELD_KINDS else argument


def paths(glob_pattern: str) -> list[str]:
    """Returns the sorted paths of the files that match a pattern.

    Raises:
      ConfigError: when no file matches.
    """
    return [file.path for file in _files(glob_pattern)]


def _files(glob_pattern: str) -> list[InputFile]:
    matches = sorted(storage.glob(glob_pattern))
    files = [
        InputFile(path, stat.num_bytes, stat.changed_ns)
        for path, stat in zip(matches, storage.stat_all(matches), strict=True)
        if stat is not None
    ]
    if matches and not files:
        raise ConfigError(
            f"config.data.sources: {glob_pattern!r} is a directory; to read its files,"
            f" write a pattern such as {glob_pattern.rstrip('/')}/**/*.txt"
        )
    if not files:
        raise ConfigError(
            f"config.data.sources: no file matches {glob_pattern!r}"
            f" (current directory: {os.getcwd()})"
        )
    return files


def by_file(spec: str) -> list[str]:
    """Splits a spec into one spec per file, which together give the same documents."""
    kind, argument = parse(spec)
    if kind not in FILE_KINDS:
        return [spec]
    glob_pattern = pattern(kind, argument)
    field = argument.removeprefix(glob_pattern)
    return [f"{kind}:{_escaped(path)}{field}" for path in paths(glob_pattern)]


def _escaped(path: str) -> str:
    """Returns a pattern that matches this path only."""
    # File systems with a scheme have their own pattern rules.
    return path if "://" in path else glob.escape(path)


def no_text(spec: str) -> ConfigError:
    """Returns the error for a source whose documents contain no text."""
    return ConfigError(f"config.data.sources: no text in {_described(spec)}")


def _described(spec: str) -> str:
    """Describes a spec by the number and names of its files."""
    kind, argument = parse(spec)
    if kind not in FILE_KINDS:
        return repr(spec)
    found = paths(pattern(kind, argument))
    names = ", ".join(found[:3]) + (", ..." if len(found) > 3 else "")
    return f"{spec!r}: 0 documents in {len(found)} file(s), {names}"
