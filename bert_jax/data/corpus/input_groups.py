"""Groups of input files, the unit in which text is read and encoded.

Consecutive small files share a group; a large file is a group of its own, or, if it is
Parquet, several groups of consecutive row groups, which can be read on their own. The
name of a group is a hash of its files, with their sizes and modification times, and of
the settings on which their encoding depends, so runs with the same name can be reused.
An added, changed or removed file affects the runs of its own group, and of the next one
if it was the last of its group.
"""

import dataclasses
import functools
import hashlib
import itertools
import json
from collections.abc import Iterator, Sequence
from concurrent import futures

from bert_jax import storage
from bert_jax.config import DataConfig
from bert_jax.data.sources import input_files, lines, sources, units
from bert_jax.data.sources.document import Document
from bert_jax.data.sources.kind import FileSource, InputFile
from bert_jax.errors import ConfigError


@dataclasses.dataclass(frozen=True)
class Group:
    """Input files of one source that are read together.

    Attributes:
      source: index of the source in config.data.sources.
      spec: spec of the source.
      files: files, or parts of files; empty for a source without files.
      name: identifies the files and the settings that are specific to their source.
    """

    source: int
    spec: str
    files: tuple[InputFile, ...]
    name: str

    @property
    def text_bytes(self) -> int:
        return sum(file.text_bytes for file in self.files)


def plan(
    found: tuple[input_files.Source, ...], data: DataConfig, max_bytes: int
) -> list[Group]:
    """Groups the files of all sources.

    Args:
      data: its source_weights and validation_fraction are used.
      max_bytes: about the size of the text of a group of several files.
    """
    groups = []
    for number, source in enumerate(found):
        kind, parts = source.kind, source.files
        # A part of lines would lose the line numbers in messages.
        if isinstance(kind, FileSource) and not kind.is_line_based:
            divide = functools.partial(parts_of, kind=kind, max_bytes=max_bytes)
            with futures.ThreadPoolExecutor(storage.STAT_THREADS) as pool:
                parts = tuple(itertools.chain(*pool.map(divide, source.files)))
        groups += [
            Group(number, source.spec, files, _name(number, source, files, data))
            for files in _grouped(parts, max_bytes)
        ]
    return groups


def parts_of(file: InputFile, kind: FileSource, max_bytes: int) -> list[InputFile]:
    """Divides a file into parts, of at most max_bytes of text if possible."""
    if file.text_bytes <= max_bytes:
        return [file]
    try:
        parts = list(kind.parts(file, max_bytes)) or [file.part]
    except ConfigError:  # reading the file raises it again
        return [file]
    # Sizes on disk that add up to that of the file.
    ends = [file.num_bytes * i // len(parts) for i in range(len(parts) + 1)]
    return [
        file._replace(num_bytes=end - start, part=part)
        for part, (start, end) in zip(parts, itertools.pairwise(ends), strict=True)
    ]


def _grouped(
    files: tuple[InputFile, ...], max_bytes: int
) -> list[tuple[InputFile, ...]]:
    """Groups the files of one source, ordered by path.

    A hash of its path decides whether a file ends its group, with a probability that
    makes groups of max_bytes on average, whatever the other files are.

    Returns:
      The groups; if there are no files, one group without files.
    """
    groups: list[list[InputFile]] = [[]]
    for file in files:
        share = file.text_bytes / max_bytes
        if share >= 1 and groups[-1]:
            groups.append([])
        groups[-1].append(file)
        place = json.dumps([storage.absolute(file.path), file.part])
        digest = hashlib.sha256(place.encode()).digest()
        if int.from_bytes(digest[:8], "big") < share * 2**64:
            groups.append([])
    return [tuple(group) for group in groups if group] or [()]


def _identity(file: InputFile) -> list:
    part = [] if file.part == lines.WHOLE else [list(file.part)]
    return [storage.absolute(file.path), file.num_bytes, file.changed_ns, *part]


def _name(
    number: int,
    source: input_files.Source,
    files: tuple[InputFile, ...],
    data: DataConfig,
) -> str:
    weight = data.source_weights[number] if data.source_weights else 1.0
    # Held-out documents are neither copied nor dropped, whatever the weight.
    fraction = data.validation_fraction if weight != 1 else None
    facts = [number, source.kind.format, source.version, weight, fraction]
    text = json.dumps([*facts, *map(_identity, files)])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def read(
    spec: str,
    files: Sequence[InputFile | units.Unit],
    data: DataConfig,
    counts: lines.ReadCounts,
) -> Iterator[Document]:
    """Yields the documents of a source or of some of its files, and collects errors.

    Args:
      files: files, or parts of files; empty for a source without files.
      counts: as for `sources.read`.
    """
    if not files:
        yield from sources.read(spec, data, counts)
    for file in files:
        counts.start_file()
        try:
            yield from sources.read(spec, data, counts, [file.path], file.part)
        except ConfigError as error:  # the rest of the file cannot be read
            counts.reject(error)


def raise_bad(found: Sequence[lines.ReadCounts]) -> None:
    """Raises one ConfigError for all bad lines and files, if there are any."""
    num_bad = sum(counts.num_bad for counts in found)
    messages = [message for counts in found for message in counts.messages]
    listed = messages[: lines.LISTED]
    if num_bad == 1:
        raise ConfigError(listed[0])
    if num_bad:
        numbered = "; ".join(f"({i}) {text}" for i, text in enumerate(listed, start=1))
        rest = f"; and {num_bad - len(listed):,} more" if num_bad > len(listed) else ""
        raise ConfigError(
            f"{num_bad:,} lines or files of config.data.sources cannot be read:"
            f" {numbered}{rest}"
        )
