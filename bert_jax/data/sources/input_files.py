"""Resolves source specs to input files with their sizes and modification times.

`find` stats each file once and all files concurrently, so that thousands of files on a
slow file system take seconds. sources.py reads the files.
"""

import dataclasses
import importlib.metadata
import os
import re
import sys
from typing import Any, NamedTuple

from bert_jax import storage
from bert_jax.data.sources import embedded, hub_datasets, lines
from bert_jax.errors import ConfigError

# Kinds whose argument is a glob pattern.
FILE_KINDS = ("text", "files", "jsonl", "parquet", "wikiextractor")
# Kinds whose pattern is followed by #field.
FIELD_KINDS = ("jsonl", "parquet")
# Kinds whose files are Parquet.
PARQUET_KINDS = ("parquet", "hf")
KINDS = ("embedded", *FILE_KINDS, "hf", "tfds")
# gzip compresses English novels to 36% of their size, bzip2 to 26% (measured on 28 MB).
COMPRESSED_RATIO = 3
COMPRESSED = (".gz", ".bz2", ".xz", ".zst", ".parquet")


class InputFile(NamedTuple):
    """An input file or a part of it, its size and its modification time."""

    path: str
    num_bytes: int  # on disk
    changed_ns: int
    part: lines.Part = lines.WHOLE

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
      commit: of a dataset on the Hugging Face Hub.
    """

    spec: str
    files: tuple[InputFile, ...]
    version: tuple[str, ...] = ()
    commit: str | None = None

    @property
    def text_bytes(self) -> int | None:
        """Returns the estimated size of the text in bytes; None if it is unknown."""
        if self.spec.startswith("tfds:"):
            return None
        return sum(file.text_bytes for file in self.files)

    @property
    def is_remote(self) -> bool:
        paths = (file.path for file in self.files[:1])
        return self.spec.startswith("tfds:") or any(map(storage.is_remote, paths))

    @property
    def kind(self) -> str:
        return parse(self.spec)[0]

    @property
    def format(self) -> str:
        """Returns the spec without its pattern; it determines how a file is read."""
        kind, argument = parse(self.spec)
        if kind not in (*FILE_KINDS, "hf"):
            return self.spec
        return kind + argument.removeprefix(pattern(kind, argument))


def find(specs: tuple[str, ...], record: str | None = None) -> tuple[Source, ...]:
    """Finds the files of each source.

    The version of `embedded:` is the version of Python and of each package that it
    reads. A `tfds:` source has no version: a change of the dataset is only detected
    when the spec names its version.

    Args:
      specs: items of config.data.sources.
      record: file of the commits of `hf:` sources, see `hub_datasets.find`.

    Raises:
      ConfigError: when a spec is malformed or matches no file.
    """
    return tuple(_find_one(spec, record) for spec in specs)


def _find_one(spec: str, record: str | None) -> Source:
    kind, argument = parse(spec)
    if kind in FIELD_KINDS and not argument.partition("#")[2]:
        raise ConfigError(
            f"config.data.sources has {spec!r}, which names no field;"
            f" write {spec}#text (or the field that contains the text)"
        )
    if kind in FILE_KINDS:
        return Source(spec, tuple(_files(pattern(kind, argument))))
    if kind == "hf":
        found, commit = hub_datasets.find(pattern(kind, argument), record)
        return Source(spec, _of_dataset(spec, found), commit=commit)
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
    old = {InputFile(*file[:3]) for source in before for file in source["files"]}
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
            " wikiextractor:GLOB, hf:OWNER/NAME[/CONFIG][:SPLIT][#column],"
            f" tfds:NAME[:SPLIT][#field]{_hint(spec)}"
        )
    return kind, argument


def _hint(spec: str) -> str:
    """Returns the end of the error for a spec that may be a path or a dataset."""
    if not spec or ":" in spec or spec in KINDS:
        return ""
    if os.path.isdir(spec):
        return f"; for these files, write text:{spec.rstrip('/')}/**/*.txt"
    if re.fullmatch(r"[\w.-]+/[\w.-]+", spec) and not os.path.exists(spec):
        return f"; for a dataset on the Hub, write hf:{spec}"
    return f"; for files, write text:{spec}"


def pattern(kind: str, argument: str) -> str:
    """Returns the argument of a spec, such as a glob pattern, without its field."""
    return argument.partition("#")[0] if kind in (*FIELD_KINDS, "hf") else argument


def _files(glob_pattern: str) -> list[InputFile]:
    matches = sorted(storage.glob(glob_pattern))
    files = _with_sizes(matches)
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


def _with_sizes(paths: list[str]) -> list[InputFile]:
    """Returns the regular files among the paths."""
    return [
        InputFile(path, stat.num_bytes, stat.changed_ns)
        for path, stat in zip(paths, storage.stat_all(paths), strict=True)
        if stat is not None
    ]


def _of_dataset(spec: str, paths: list[str]) -> tuple[InputFile, ...]:
    files = _with_sizes(paths)
    if len(files) < len(paths):
        missing = next(path for path in paths if not os.path.isfile(path))
        raise ConfigError(
            f"config.data.sources: {spec} lacks {len(paths) - len(files)} of its"
            f" {len(paths)} files, such as {missing}; download the dataset again"
        )
    return tuple(files)


def no_text(spec: str) -> ConfigError:
    """Returns the error for a source whose documents contain no text."""
    return ConfigError(f"config.data.sources: no text in {_described(spec)}")


def _described(spec: str) -> str:
    """Describes a spec by the number and names of its files."""
    kind, argument = parse(spec)
    if kind not in FILE_KINDS:
        return repr(spec)
    found = [file.path for file in _files(pattern(kind, argument))]
    names = ", ".join(found[:3]) + (", ..." if len(found) > 3 else "")
    return f"{spec!r}: 0 documents in {len(found)} file(s), {names}"
