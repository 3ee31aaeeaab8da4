"""Samples text from all over the sources, within a number of bytes.

Sources share the bytes equally, what a small source does not need going to the others,
and so do the files of a source. A large file is read in stretches that begin at equal
distances; a compressed file, which cannot be entered in the middle, from its beginning;
a dataset in parts. So the time taken depends on the size of the sample alone, whatever
the size of the sources.
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
from bert_jax.data.sources import input_files, json_lines, lines, sources
from bert_jax.data.sources import tfds as tfds_lib
from bert_jax.errors import ConfigError

# Read from one place of a file: short enough that a small sample has hundreds of
# places, long enough that opening a file in a bucket does not take most of the time.
STRETCH_BYTES = 2**17
# Parts of a dataset. To begin at an example, the file with it is read up to there.
DATASET_PARTS = 16


@dataclasses.dataclass
class Sampled:
    """How much text of a source was taken, and from how many places of it."""

    documents: int = 0
    bytes: int = 0
    places: int = 0
    is_everything: bool = True


@dataclasses.dataclass(frozen=True)
class _Place:
    """Where text is taken.

    Attributes:
      spec: of a source, or of a part of a dataset.
      max_bytes: of text.
      path: file of the source; None for all of the source.
      start: byte of the file.
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
    """Yields documents from all over the sources, at most max_bytes of text.

    Of a document that is too long, the beginning is taken. The sample depends on the
    text and on max_bytes alone.

    Args:
      data: as for `sources.documents`.
      found: the sources.
      max_bytes: of text, over all sources.
      sampled: one `Sampled` is appended for each source, in their order, and counted
        up.

    Raises:
      ConfigError: when there is no text in a source, or something cannot be read;
        names all of it. Of a source that is not read whole only the beginnings of files
        are checked.
    """
    counts = lines.ReadCounts()
    share = int(_level((source.text_bytes or math.inf for source in found), max_bytes))
    for source in found:
        sampled.append(Sampled())
        yield from _of_source(source, share, data, sampled[-1], counts)
        if not sampled[-1].bytes and sampled[-1].is_everything and not counts.num_bad:
            raise input_files.no_text(source.spec)
    input_groups.raise_bad([counts])


def _of_source(
    source: input_files.Source,
    max_bytes: int,
    data: DataConfig,
    sampled: Sampled,
    counts: lines.ReadCounts,
) -> Iterator[document_lib.Document]:
    spec = source.spec
    if spec.startswith("tfds:"):
        parts = tfds_lib.parts(
            spec.removeprefix("tfds:"), DATASET_PARTS, "config.data.sources"
        )
        places = [
            _Place(f"tfds:{part}", max_bytes // max(1, len(parts))) for part in parts
        ]
    elif not source.files:
        places = [_Place(spec, max_bytes)]
    elif (source.text_bytes or 0) <= max_bytes:
        places = [_Place(spec, max_bytes, file.path) for file in source.files]
    else:
        places = list(_places_in_files(source, max_bytes))
        sampled.is_everything = False
    with tempfile.TemporaryDirectory() as directory:
        stretches = _Stretches(data, directory)
        for place in places:
            left = min(place.max_bytes, max_bytes - sampled.bytes)
            if left <= 0:
                sampled.is_everything = False
                break
            sampled.places += 1
            if not place.start:
                yield from _beginning(_read(place, data, counts), left, sampled)
                continue
            # The pass over all of the text reports such a line with its number.
            with contextlib.suppress(ConfigError):
                copy = [stretches.copy(place)]
                found = sources.read(spec, data, collections.Counter(), copy)
                yield from _beginning(found, left, sampled)


def _read(
    place: _Place, data: DataConfig, counts: lines.ReadCounts
) -> Iterator[document_lib.Document]:
    """Yields documents from the beginning of a file, a source or a part of one."""
    if place.path is None:
        yield from sources.read(place.spec, data, counts)
        return
    counts.start_file()
    try:
        yield from sources.read(place.spec, data, counts, [place.path])
    except ConfigError as error:  # the rest of the file cannot be read
        counts.reject(error)


def _places_in_files(source: input_files.Source, max_bytes: int) -> Iterator[_Place]:
    """Yields places in all files, or in evenly spread ones if they are very many."""
    sizes = (file.text_bytes for file in source.files)
    most = int(max(STRETCH_BYTES, _level(sizes, max_bytes)))
    left = max_bytes
    for file in _spread(source.files):
        if left <= 0:
            break
        path, size = file.path, file.text_bytes
        num_bytes = min(size, most, left)
        left -= num_bytes
        num_places = math.ceil(num_bytes / STRETCH_BYTES)
        if num_bytes == size or lines.is_compressed(path):
            # Some more than its size: a last line without an end is counted with one.
            yield _Place(source.spec, num_bytes + 1, path)
            continue
        for i in range(num_places):
            start = i * size // num_places
            yield _Place(source.spec, num_bytes // num_places, path, start)


def _spread(
    files: tuple[input_files.InputFile, ...],
) -> list[input_files.InputFile]:
    """Returns the files in an order of which every beginning is evenly spread."""
    golden = (math.sqrt(5) - 1) / 2
    return [files[i] for i in sorted(range(len(files)), key=lambda i: i * golden % 1)]


def _beginning(
    found: Iterable[document_lib.Document], max_bytes: int, sampled: Sampled
) -> Iterator[document_lib.Document]:
    """Yields the first documents, of the last one as much as there is room for."""
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
    """Returns the beginning of a document, which may be empty."""
    kept, left = [], max_bytes
    for line in document.lines:
        num_bytes = lines.num_bytes(line) + 1
        if num_bytes > left:
            if left > 4:  # a character of UTF-8, and the line's end
                kept.append(lines.cut(line, left - 1)[0])
            break
        kept.append(line)
        left -= num_bytes
    return dataclasses.replace(document, lines=tuple(filter(None, kept)))


class _Stretches:
    """Copies stretches of files to a file, which is read as any other."""

    def __init__(self, data: DataConfig, directory: str):
        self._path = os.path.join(directory, "stretch")
        self._max_line = json_lines.JSON_OVERHEAD * data.max_document_bytes
        self._ends: dict[str, int] = {}

    def copy(self, place: _Place) -> str:
        """Copies the lines that begin after place.start and returns the copy's path.

        They are as many as hold place.max_bytes. A line that was copied before is not
        copied again. Bytes that are not UTF-8 are dropped.
        """
        is_text = place.spec.startswith(("text:", "files:"))
        max_line = STRETCH_BYTES if is_text else self._max_line
        assert place.path is not None
        start = max(place.start, self._ends.get(place.path, 0)) - 1
        reader = storage.Reader(place.path)
        reader.seek(start)
        with io.BufferedReader(reader) as file, open(self._path, "wb") as copy:
            end = start + len(file.readline(max_line))
            stop = end + place.max_bytes
            while end < stop and (line := file.readline(max_line)):
                end += len(line)
                copy.write(line.decode("utf-8", "ignore").encode())
        self._ends[place.path] = end
        return self._path


def _level(sizes: Iterable[float], total: float) -> float:
    """Returns the largest number with sum(min(size, number)) <= total, or total."""
    left, sizes = total, sorted(sizes)
    for i, size in enumerate(sizes):
        if size * (len(sizes) - i) > left:
            return left / (len(sizes) - i)
        left -= size
    return total
