"""Samples a bounded number of bytes of text, spread over all sources.

The bytes are shared equally between sources, and between the files of a source; the
share that a small source or file does not need goes to the others. A large file is
sampled in excerpts at equal distances, a compressed or Parquet file, which cannot be
read from any byte, from its start, and a dataset in slices. The time depends on the
size of the sample, not on the size of the sources.
"""

import collections
import contextlib
import dataclasses
import io
import math
import os
import tempfile
from collections.abc import Iterable, Iterator

from bert_jax import storage
from bert_jax.config import DataConfig
from bert_jax.data.corpus import input_groups
from bert_jax.data.sources import document as document_lib
from bert_jax.data.sources import formats, input_files, json_lines, lines, sources
from bert_jax.data.sources.kind import DatasetSource, FileSource, InputFile, SourceKind
from bert_jax.errors import ConfigError

# The size of an excerpt of a file: small enough that a small sample has hundreds of
# excerpts, large enough that opening files in a bucket does not dominate the time.
EXCERPT_BYTES = 2**17
# Slices of a dataset. The file of a slice is read from its start up to the slice.
DATASET_PARTS = 16


@dataclasses.dataclass
class Sampled:
    """The amount of text sampled from a source, and the number of places.

    Attributes:
      documents: number of documents.
      bytes: size of the text in UTF-8.
      places: number of places from which text was taken.
      is_everything: True if the whole source was taken.
    """

    documents: int = 0
    bytes: int = 0
    places: int = 0
    is_everything: bool = True


@dataclasses.dataclass(frozen=True)
class _Place:
    """A place from which text is taken.

    Attributes:
      spec: spec of a source or of a slice of a dataset.
      max_bytes: maximum size of the text.
      path: a file of the source; None for the whole source.
      start: offset in the file, in bytes.
    """

    spec: str
    max_bytes: int
    path: str | None = None
    start: int = 0


def documents(
    data: DataConfig,
    found: tuple[input_files.Source, ...],
    max_bytes: int,
    sampled: list[Sampled],
) -> Iterator[document_lib.Document]:
    """Yields documents from all sources, at most max_bytes of text in total.

    Documents that do not fit are truncated. The sample is deterministic: it depends on
    the text and max_bytes only.

    Args:
      data: as for `sources.read`.
      max_bytes: maximum size of the text of all sources.
      sampled: one `Sampled` per source is appended, in order, and updated.

    Raises:
      ConfigError: when a source contains no text, or when text cannot be read; the
        message lists all such errors. If a source is not read completely, only the
        starts of its files are checked.
    """
    counts = lines.ReadCounts()
    sizes = (source.text_bytes or math.inf for source in found)
    share = int(_equal_share(sizes, max_bytes))
    for source in found:
        sampled.append(Sampled())
        yield from _sample_source(source, share, data, sampled[-1], counts)
        if not sampled[-1].bytes and sampled[-1].is_everything and not counts.num_bad:
            raise input_files.no_text(source.spec)
    input_groups.raise_bad([counts])


def _sample_source(
    source: input_files.Source,
    max_bytes: int,
    data: DataConfig,
    sampled: Sampled,
    counts: lines.ReadCounts,
) -> Iterator[document_lib.Document]:
    spec, kind = source.spec, source.kind
    if isinstance(kind, DatasetSource):
        slices = kind.slices(DATASET_PARTS)
        places = [_Place(part, max_bytes // max(1, len(slices))) for part in slices]
    elif (source.text_bytes or 0) <= max_bytes:
        places = [_Place(spec, max_bytes, file.path) for file in source.files]
    else:
        places = list(_places_in_files(source, max_bytes))
        sampled.is_everything = False
    with tempfile.TemporaryDirectory() as directory:
        excerpts = _Excerpts(kind, data, directory)
        for place in places:
            left = min(place.max_bytes, max_bytes - sampled.bytes)
            if left <= 0:
                sampled.is_everything = False
                break
            sampled.places += 1
            if not place.start:
                yield from _truncated(_read(place, data, counts), left, sampled)
                continue
            # Reading the whole text later reports bad lines with their line numbers.
            with contextlib.suppress(ConfigError):
                copy = [excerpts.copy(place)]
                found = sources.read(spec, data, collections.Counter(), copy)
                yield from _truncated(found, left, sampled)


def _read(
    place: _Place, data: DataConfig, counts: lines.ReadCounts
) -> Iterator[document_lib.Document]:
    """Yields documents from the start of a file, a source or a slice of a dataset."""
    if place.path is None:
        yield from sources.read(place.spec, data, counts)
        return
    counts.start_file()
    try:
        yield from sources.read(place.spec, data, counts, [place.path])
    except ConfigError as error:  # the rest of the file cannot be read
        counts.reject(error)


def _places_in_files(source: input_files.Source, max_bytes: int) -> Iterator[_Place]:
    """Yields places in all files, or in evenly spaced ones if there are very many."""
    sizes = (file.text_bytes for file in source.files)
    most = int(max(EXCERPT_BYTES, _equal_share(sizes, max_bytes)))
    left = max_bytes
    kind = source.kind
    assert isinstance(kind, FileSource)
    for file in _spread(source.files):
        if left <= 0:
            break
        path, size = file.path, file.text_bytes
        num_bytes = min(size, most, left)
        left -= num_bytes
        num_places = math.ceil(num_bytes / EXCERPT_BYTES)
        is_whole = num_bytes == size or not kind.is_line_based
        if is_whole or formats.is_compressed(path):
            # One more than the size, because a missing last line end is counted.
            yield _Place(source.spec, num_bytes + 1, path)
            continue
        for i in range(num_places):
            start = i * size // num_places
            yield _Place(source.spec, num_bytes // num_places, path, start)


def _spread(
    files: tuple[InputFile, ...],
) -> list[InputFile]:
    """Returns the files in an order in which every prefix is evenly spaced."""
    golden = (math.sqrt(5) - 1) / 2
    return [files[i] for i in sorted(range(len(files)), key=lambda i: i * golden % 1)]


def _truncated(
    found: Iterable[document_lib.Document], max_bytes: int, sampled: Sampled
) -> Iterator[document_lib.Document]:
    """Yields the first documents, with the last one truncated to fit max_bytes."""
    left = max_bytes
    for document in found:
        is_whole = document.num_bytes <= left
        if not is_whole:
            sampled.is_everything = False
            document = _cut(document, left)
        if document.lines or is_whole:
            sampled.documents += 1
            sampled.bytes += document.num_bytes
            yield document
        if not is_whole:
            return
        left -= document.num_bytes


def _cut(document: document_lib.Document, max_bytes: int) -> document_lib.Document:
    """Returns the start of a document, which may be empty."""
    kept, left = [], max_bytes
    for line in document.lines:
        num_bytes = lines.num_bytes(line) + 1
        if num_bytes > left:
            if left > 4:  # room for any character and the line end
                kept.append(lines.cut(line, left - 1)[0])
            break
        kept.append(line)
        left -= num_bytes
    return dataclasses.replace(document, lines=tuple(filter(None, kept)))


class _Excerpts:
    """Copies excerpts of files to a local file, which is read like any other."""

    def __init__(self, kind: SourceKind, data: DataConfig, directory: str):
        self._path = os.path.join(directory, "excerpt")
        self._max_line = json_lines.JSON_OVERHEAD * data.max_document_bytes
        if isinstance(kind, FileSource) and kind.may_cut_lines:
            self._max_line = EXCERPT_BYTES
        self._ends: dict[str, int] = {}

    def copy(self, place: _Place) -> str:
        """Copies whole lines, about place.max_bytes, and returns the path of the copy.

        The copy starts with the first line that starts after place.start and was not
        copied before. Bytes that are not UTF-8 are dropped.
        """
        max_line = self._max_line
        assert place.path is not None
        start = max(place.start, self._ends.get(place.path, 0)) - 1
        reader = storage.Reader(place.path)
        reader.seek(start)
        with (
            io.BufferedReader(reader) as file,
            storage.open_own(self._path, "wb") as copy,
        ):
            end = start + len(file.readline(max_line))
            stop = end + place.max_bytes
            while end < stop and (line := file.readline(max_line)):
                end += len(line)
                copy.write(line.decode("utf-8", "ignore").encode())
        self._ends[place.path] = end
        return self._path


def _equal_share(sizes: Iterable[float], total: float) -> float:
    """Returns the largest share with sum(min(size, share)) <= total, or total."""
    left, sizes = total, sorted(sizes)
    for i, size in enumerate(sizes):
        if size * (len(sizes) - i) > left:
            return left / (len(sizes) - i)
        left -= size
    return total
