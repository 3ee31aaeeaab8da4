"""The interface of a kind of source: finding files, reading them, dividing them.

A new kind is a class, and an entry of `sources.KINDS`.
"""

import abc
import dataclasses
import glob
import os
from collections.abc import Iterator, Sequence
from typing import ClassVar, NamedTuple

from bert_jax import storage
from bert_jax.data.sources import lines, unwrap
from bert_jax.data.sources.lines import Reading
from bert_jax.data.sources.unwrap import Stream
from bert_jax.errors import ConfigError

# gzip compresses English novels to 36% of their size, bzip2 to 26% (measured on 28 MB).
COMPRESSED_RATIO = 3
COMPRESSED = (*lines.COMPRESSED, ".parquet")


@dataclasses.dataclass(frozen=True, slots=True)
class Document:
    """A document as it was read, before cleaning and sentence splitting."""

    lines: tuple[str, ...]  # non-blank, without line ends
    is_split: bool  # each line is a sentence; otherwise each line is a paragraph

    @property
    def num_bytes(self) -> int:
        """Returns the size of the text in UTF-8, counting one byte per line end."""
        return sum(len(line.encode(errors="replace")) + 1 for line in self.lines)


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
    """An item of config.data.sources, with the files or version of its text."""

    kind: "DatasetSource | FileSource"
    files: tuple[InputFile, ...] = ()  # sorted by path; empty for a dataset
    version: tuple[str, ...] = ()  # of a dataset, if it is known
    commit: str | None = None  # of a dataset on the Hugging Face Hub

    @property
    def text_bytes(self) -> int | None:
        """Returns the estimated size of the text in bytes; None if it is unknown."""
        if self.kind.is_download:
            return None
        return sum(file.text_bytes for file in self.files)

    def no_text(self) -> ConfigError:
        names = ", ".join(file.path for file in self.files[:3])
        names += ", ..." * (len(self.files) > 3)
        files = f": 0 documents in {len(self.files)} file(s), {names}" if names else ""
        return ConfigError(f"config.data.sources: no text in {self.kind.spec!r}{files}")


class SourceKind(abc.ABC):
    """A source of some kind, made from its spec."""

    name: ClassVar[str]  # before the colon of a spec
    form: ClassVar[str]  # syntax of a spec, for error messages
    is_download: ClassVar[bool] = False  # its size is known only after a download

    def __init__(self, spec: str):
        """Parses a spec; raises ConfigError if it is malformed."""
        self.spec = spec
        self.format = spec  # the part of the spec that determines how a file is read
        self.argument = spec.removeprefix(f"{self.name}:")

    @abc.abstractmethod
    def find(self, record: str | None) -> Source:
        """Finds the files; raises ConfigError if there are none.

        `record` is the file of the commits of datasets on the Hub, see
        `hub_datasets.find`.
        """


class DatasetSource(SourceKind):
    def prepare(self) -> None:
        """Downloads the dataset, unless an earlier call has."""

    @abc.abstractmethod
    def read(self, reading: Reading) -> Iterator[Document]:
        """Yields all documents; see `sources.read`."""


class FileSource(SourceKind):
    """A source of files that match a glob pattern."""

    has_field: ClassVar[bool] = False  # #field follows the pattern
    is_line_based: ClassVar[bool] = True  # a line needs no lines before it

    def __init__(self, spec: str):
        super().__init__(spec)
        self.pattern, self.field = self.argument, ""
        if self.has_field:
            self.pattern, _, self.field = self.argument.partition("#")
        self.format = self.name + self.argument.removeprefix(self.pattern)

    def find(self, record: str | None) -> Source:
        path = storage.parse_path("config.data.sources", self.pattern)
        matches = sorted({*storage.glob(path)})  # two ** find a file repeatedly
        pattern = self.pattern.rstrip("/")
        if not matches and os.path.exists(path):  # with brackets, a pattern of others
            matches, pattern = [path], glob.escape(pattern)
        if files := with_sizes(matches):
            return Source(self, files)
        problem = (
            f"{self.pattern!r} is a directory; to read its files, write a pattern such"
            f" as {pattern}/**/*.txt"
            if matches
            else f"no file matches {self.pattern!r} (current directory: {os.getcwd()})"
        )
        raise ConfigError(f"config.data.sources: {problem}")

    def read(self, path: str, part: lines.Part, reading: Reading) -> Iterator[Document]:
        """Yields the documents of a part of a file; see `sources.read`."""
        yield from assemble(self.stream(path, part, reading), reading)

    def stream(self, path: str, part: lines.Part, reading: Reading) -> Stream:
        """Yields the lines of a part of a file, and None after each document.

        Abstract: every kind overrides this or `read`.
        """
        raise NotImplementedError

    def parts(self, file: InputFile, max_bytes: int) -> Iterator[lines.Part]:
        """Divides a file into parts, of about max_bytes of text if possible."""
        yield lines.WHOLE


def assemble(
    stream: Stream, reading: Reading, *, is_split: bool = False
) -> Iterator[Document]:
    """Yields the documents in a stream of lines.

    Hard-wrapped lines are joined first, unless the lines are sentences. A document
    over max_document_bytes is yielded in parts, which "documents_cut" counts.
    """
    if not is_split:
        stream = unwrap.unwrapped(stream, reading.counts)
    document: list[str] = []
    size = 0
    for line in stream:
        if line is None:
            yield Document(tuple(document), is_split)
            document, size = [], 0
        elif line and not line.isspace():
            num_bytes = lines.num_bytes(line) + 1
            if document and size + num_bytes > reading.max_document_bytes:
                reading.counts["documents_cut"] += 1
                yield Document(tuple(document), is_split)
                document, size = [], 0
            document.append(line)
            size += num_bytes
    if document:
        yield Document(tuple(document), is_split)


def with_sizes(paths: Sequence[str]) -> tuple[InputFile, ...]:
    """Returns the regular files among the paths."""
    return tuple(
        InputFile(path, stat.num_bytes, stat.changed_ns)
        for path, stat in zip(paths, storage.stat_all(paths), strict=True)
        if stat is not None
    )


def choose_text(
    texts: Sequence[str],
    given: str,
    where: str,
    kind: str = "",
    others: Sequence[str] = (),
) -> str:
    """Returns the given column of text; without one, "text" or the only one.

    For the error, `where` is the file or dataset, `kind` the type of the given column
    if it is not text, and `others` are columns that may also be given.
    """
    if given in texts:
        return given
    if not given and ("text" in texts or len(texts) == 1):
        return "text" if "text" in texts else texts[0]
    problem = f"no column {given!r} of text" if given else "no single column of text"
    problem += f" (it is {kind})" if kind else ""
    raise ConfigError(
        f"config.data.sources: {where} has {problem}; append one to the source, as in"
        f" #column: {', '.join([*texts, *others]) or 'there is none'}"
    )
