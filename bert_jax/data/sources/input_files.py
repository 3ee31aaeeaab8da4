"""Finds the sources of a config: their files, sizes and modification times."""

import dataclasses
from typing import Any

from bert_jax import storage
from bert_jax.data.sources import sources
from bert_jax.data.sources.kind import DatasetSource, FileSource, InputFile
from bert_jax.errors import ConfigError


@dataclasses.dataclass(frozen=True)
class Source:
    """An item of config.data.sources and its files; see `kind.Found`."""

    spec: str
    files: tuple[InputFile, ...]
    version: tuple[str, ...] = ()
    commit: str | None = None

    @property
    def kind(self) -> DatasetSource | FileSource:
        return sources.parse(self.spec)

    @property
    def text_bytes(self) -> int | None:
        """Returns the estimated size of the text in bytes; None if it is unknown."""
        if self.kind.is_download:
            return None
        return sum(file.text_bytes for file in self.files)

    @property
    def is_remote(self) -> bool:
        paths = (file.path for file in self.files[:1])
        return self.kind.is_download or any(map(storage.is_remote, paths))


def find(specs: tuple[str, ...], record: str | None = None) -> tuple[Source, ...]:
    """Finds the files of each source, see `SourceKind.find`."""
    return tuple(Source(spec, *sources.parse(spec).find(record)) for spec in specs)


def total_bytes(found: tuple[Source, ...]) -> int | None:
    """Returns the estimated size of all text in bytes; None if a size is unknown."""
    sizes = [source.text_bytes for source in found]
    return None if None in sizes else sum(filter(None, sizes))


def changed_share(before: list[dict[str, Any]], found: tuple[Source, ...]) -> float:
    """Returns the share of the text that is in added, changed or removed files.

    The share is 1 if the spec or version of any source differs.

    Args:
      before: earlier sources, converted by `dataclasses.asdict` and stored as JSON.
    """
    if [(source["spec"], tuple(source["version"])) for source in before] != [
        (source.spec, source.version) for source in found
    ]:
        return 1.0
    old = {InputFile(*file[:3]) for source in before for file in source["files"]}
    new = {file for source in found for file in source.files}
    total = sum(file.text_bytes for file in old | new)
    return sum(file.text_bytes for file in old ^ new) / total if total else 0.0


def no_text(source: Source) -> ConfigError:
    """Returns the error for a source whose documents contain no text."""
    paths = [file.path for file in source.files]
    names = ", ".join(paths[:3]) + ", ..." * (len(paths) > 3)
    files = f": 0 documents in {len(paths)} file(s), {names}" if paths else ""
    return ConfigError(f"config.data.sources: no text in {source.spec!r}{files}")
