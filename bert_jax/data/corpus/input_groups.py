"""Groups of input files, the unit in which text is read and encoded.

Consecutive small files share a group; a large file is a group of its own, or, if it is
Parquet, several groups of consecutive row groups, which can be read on their own. The
name of a group is a hash of its files, with their sizes and modification times, and of
the settings on which their encoding depends, so runs with the same name can be reused.
Unchanged groups of an interrupted call are kept, so that an added, changed or removed
file affects only the runs of its own group.
"""

import dataclasses
import hashlib
import itertools
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent import futures

from bert_jax import storage
from bert_jax.config import DataConfig
from bert_jax.data.sources import document as document_lib
from bert_jax.data.sources import input_files, lines, sources
from bert_jax.data.sources.kind import FileSource, InputFile, ranges
from bert_jax.errors import ConfigError

_FILE = "groups.json"


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
    found: tuple[input_files.Source, ...], data: DataConfig, work: str, max_bytes: int
) -> list[Group]:
    """Groups the files of all sources, reusing the unchanged groups of an earlier call.

    Args:
      data: its source_weights and validation_fraction are used.
      work: directory in which the grouping is stored.
      max_bytes: maximum size of the text of a group of several files.
    """
    path = os.path.join(work, _FILE)
    before: list[list] = json.loads(storage.read(path)) if storage.exists(path) else []
    groups = []
    for number, source in enumerate(found):
        old = [files for old_number, files in before if old_number == number]
        kind, parts = source.kind, source.files
        # A part of lines would lose the line numbers in messages.
        if isinstance(kind, FileSource) and not kind.is_line_based:
            parts = _divided(kind, source.files, old, max_bytes)
        groups += [
            Group(number, source.spec, files, _name(number, source, files, data))
            for files in _grouped(parts, old, max_bytes)
        ]
    after = [[group.source, list(map(_identity, group.files))] for group in groups]
    if after != before:
        storage.write(path, json.dumps(after).encode())
    return groups


def _divided(
    kind: FileSource,
    files: tuple[InputFile, ...],
    before: list[list],
    max_bytes: int,
) -> tuple[InputFile, ...]:
    """Returns the files, with large ones divided into parts, such as row groups.

    Files that an earlier call divided are not opened again.
    """
    known: dict[tuple, list[InputFile]] = {}
    for path, num_bytes, changed_ns, *row_groups in itertools.chain(*before):
        for first, end in row_groups:
            part = InputFile(path, num_bytes, changed_ns, (first, end))
            known.setdefault((path, changed_ns), []).append(part)

    def divide(file: InputFile) -> list[InputFile]:
        if file.text_bytes <= max_bytes:
            return [file]
        path, _, changed_ns = _identity(file)
        parts = known.get((path, changed_ns), [])
        if sum(part.num_bytes for part in parts) == file.num_bytes:
            return [part._replace(path=file.path) for part in parts]
        return _parts(file, kind, max_bytes)

    with futures.ThreadPoolExecutor(storage.STAT_THREADS) as pool:
        return tuple(itertools.chain(*pool.map(divide, files)))


def _parts(file: InputFile, kind: FileSource, max_bytes: int) -> list[InputFile]:
    """Divides a file into parts, of at most max_bytes of text if possible."""
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
    files: tuple[InputFile, ...], before: list[list], max_bytes: int
) -> list[tuple[InputFile, ...]]:
    """Groups the files of one source, reusing the unchanged groups of an earlier call.

    Args:
      before: identities of the files in each group of the earlier call.
      max_bytes: maximum size of the text of a group of several files.

    Returns:
      The groups, ordered by path. If there are no files, one group without files.
    """
    if not files:
        return [()]
    left = {json.dumps(_identity(file)): file for file in files}
    groups = []
    for old in (list(map(json.dumps, group)) for group in before):
        if old and all(identity in left for identity in old):
            groups.append(tuple(left.pop(identity) for identity in old))
    others = tuple(left.values())
    sizes = [file.text_bytes for file in others]
    groups += [others[slice(*part)] for part in ranges(sizes, max_bytes)]
    return sorted(groups, key=lambda group: (group[0].path, group[0].part[0]))


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


class Reader:
    """Reads groups, and collects errors instead of raising them.

    Attributes:
      groups: all groups.
    """

    def __init__(self, groups: list[Group], data: DataConfig):
        self.groups, self._data = groups, data
        self._kept: dict[str, tuple[list[document_lib.Document], lines.ReadCounts]] = {}

    def keep(self) -> Iterator[tuple[int, document_lib.Document]]:
        """Reads all documents into memory, and yields (source, document) pairs.

        Raises:
          ConfigError: when lines or files cannot be read, or a source contains no text.
        """
        for group in self.groups:
            documents, counts = self.read(group)
            self._kept[group.name] = list(documents), counts
        raise_bad([counts for _, counts in self._kept.values()])
        check_text(
            self.groups,
            {
                name: sum(bool(document.lines) for document in documents)
                for name, (documents, _) in self._kept.items()
            },
        )
        for group in self.groups:
            for document in self._kept[group.name][0]:
                yield group.source, document

    def read(
        self, group: Group
    ) -> tuple[Iterable[document_lib.Document], lines.ReadCounts]:
        """Returns the documents of a group, and counts that are filled by reading them.

        Documents that `keep` read into memory are released.
        """
        if group.name in self._kept:
            return self._kept.pop(group.name)
        counts = lines.ReadCounts()
        return self._documents(group, counts), counts

    def _documents(
        self, group: Group, counts: lines.ReadCounts
    ) -> Iterator[document_lib.Document]:
        if not group.files:
            yield from sources.read(group.spec, self._data, counts)
        for file in group.files:
            counts.start_file()
            try:
                yield from sources.read(
                    group.spec, self._data, counts, [file.path], file.part
                )
            except ConfigError as error:  # the rest of the file cannot be read
                counts.reject(error)


def raise_bad(found: Sequence[lines.ReadCounts | lines.BadLines]) -> None:
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


def check_text(groups: list[Group], num_with_text: dict[str, int]) -> None:
    """Raises ConfigError if a source contains no text.

    Args:
      num_with_text: number of documents with text, by name of the group.
    """
    of_source: dict[int, int] = {}
    for group in groups:
        count = num_with_text.get(group.name, 0)
        of_source[group.source] = of_source.get(group.source, 0) + count
    for group in groups:
        if not of_source[group.source]:
            raise input_files.no_text(group.spec)
