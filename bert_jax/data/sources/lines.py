"""Reads the lines of a file: its format, decompression, decoding, bounded memory.

Files are read in chunks, so memory stays bounded for any size of a file or a line.
`kind.assemble` makes documents of the lines.
"""

import bz2
import codecs
import collections
import dataclasses
import gzip
import io
import lzma
import os
import re
import shlex
import zlib
from collections.abc import Iterator
from typing import Any

from bert_jax import storage
from bert_jax.errors import ConfigError

CHUNK_BYTES = 2**20
# The number of errors that are kept for the report, per file and in total.
LISTED_OF_FILE = 3
LISTED = 20

# A part of a file: the first row group or byte, and the one after the last.
Part = tuple[int, int | None]
WHOLE: Part = (0, None)
_LINE_END = re.compile(rb"\n|\r(?!\n)")
# Runs of invalid bytes, as decoded with "surrogateescape".
_INVALID_BYTES = re.compile("[\udc80-\udcff]+")


class ReadCounts(collections.Counter[str]):
    """Counter of changes made while reading, which also collects errors.

    A reader that is given a plain Counter raises ConfigError at the first bad line.
    Given ReadCounts, it drops the line, records the error and continues.
    """

    def __init__(self):
        super().__init__()
        self.num_bad = 0  # bad lines
        self.messages: list[str] = []  # of the first ones, LISTED_OF_FILE per file
        self.num_of_file = 0  # bad lines of the file that is being read

    def __reduce__(self):
        return type(self), (), vars(self), None, iter(self.items())


@dataclasses.dataclass(frozen=True)
class Reading:
    """Options of the readers of text, and the counters that they increment."""

    # "lines_repaired", "files_skipped" and, see `sources.read`, others are incremented
    counts: collections.Counter[str]
    # how to treat bytes that are not UTF-8. "error" and None raise; the message of
    # "error" names the config key. "replace" replaces each run of invalid bytes with
    # U+FFFD. "skip" keeps the bytes as lone surrogates, which `is_utf8` detects.
    invalid_utf8: str | None = None
    # in bytes of UTF-8. A longer line is yielded in parts, all with its number. The
    # default is large enough that no line is split.
    max_line_bytes: int = 2**30
    max_document_bytes: int = 2**30

    def lines_of(self, value: bytes, where: str) -> list[str]:
        """Returns the lines of a text that is one value of a file."""
        text = value.decode("utf-8", "surrogateescape")
        return repair(text, where, self).splitlines()

    def reject(self, error: ConfigError) -> None:
        """Records the error if `counts` is a ReadCounts; raises it otherwise."""
        counts = self.counts
        if not isinstance(counts, ReadCounts):
            raise error
        counts.num_bad += 1
        counts.num_of_file += 1
        if counts.num_of_file <= LISTED_OF_FILE and len(counts.messages) < LISTED:
            counts.messages.append(str(error))


def read(path: str, reading: Reading, part: Part = WHOLE) -> Iterator[tuple[int, str]]:
    """Yields (line number, text) for every line of a file, blank lines included.

    gzip, bzip2, xz and zstd files are recognized by their first bytes and decompressed.
    `part` has the bytes in which the lines start; it is WHOLE unless the file
    `is_divisible`. Line numbers count from the first line of the part.
    """
    yield from split(_chunks(path, part), path, reading, part[0])


def split(
    chunks: Iterator[bytes], name: str, reading: Reading, first_byte: int = 0
) -> Iterator[tuple[int, str]]:
    """Yields (line number, text) for every line of a text, blank lines included.

    A line ends at LF, CR or CRLF. A byte order mark at the start is dropped.

    Args:
      chunks: the bytes of the text. The first chunk shows its format, so it should
        have HEAD_BYTES if the text does.
      first_byte: offset of the chunks in the text.
    """
    number, pending, max_bytes = 1, "", reading.max_line_bytes

    def parts(line: str) -> list[str]:
        if not is_utf8(line):
            place = where(name, number, first_byte)
            line = repair(line, place, reading, name)
        # A character has at most four bytes in UTF-8.
        return [line] if len(line) * 4 <= max_bytes else cut(line, max_bytes)

    for text in _decoded(chunks, name, reading, first_byte):
        *whole, pending = (pending + text).split("\n")
        for line in whole:
            for part in parts(line):
                yield number, part
            number += 1
        if len(pending) > max_bytes:
            *complete, pending = parts(pending)
            for part in complete:
                yield number, part
    if pending:
        for part in parts(pending):
            yield number, part


def where(name: str, number: int, first_byte: int) -> str:
    from_byte = f" (counted from byte {first_byte:,})" if first_byte else ""
    return f"{name}:{number}{from_byte}"


def is_utf8(text: str) -> bool:
    """Returns whether a text decoded with "surrogateescape" was valid UTF-8."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def repair(text: str, where: str, reading: Reading, path: str = "") -> str:
    """Applies `invalid_utf8` to text decoded with "surrogateescape".

    For the error, `path` is the file if it contains nothing but text.
    """
    if is_utf8(text) or reading.invalid_utf8 == "skip":
        return text
    if reading.invalid_utf8 == "replace":
        reading.counts["lines_repaired"] += 1
    else:
        key = ", or set config.data.invalid_utf8 to replace or skip"
        hint = key if reading.invalid_utf8 else ""
        reading.reject(ConfigError(_describe(text, where, path) + hint))
    return _INVALID_BYTES.sub("\ufffd", text)


def num_bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogateescape"))


def cut(text: str, max_bytes: int) -> list[str]:
    """Splits a text into parts of at most `max_bytes` UTF-8 bytes, at least 4.

    A text is cut at a space, which is dropped, or between two characters if there is
    no space.
    """
    data = text.encode("utf-8", "surrogateescape")
    parts, start = [], 0
    while len(data) - start > max_bytes:
        end = data.rfind(b" ", start + 1, start + max_bytes + 1)
        skipped = 1
        if end < 0:
            end, skipped = start + max_bytes, 0
            # All bytes of a text that is not UTF-8 may be continuation bytes.
            least = start + max(1, max_bytes - 4)
            while data[end] & 0xC0 == 0x80 and end > least:
                end -= 1  # a continuation byte
        parts.append(data[start:end])
        start = end + skipped
    parts.append(data[start:])
    return [part.decode("utf-8", "surrogateescape") for part in parts]


def _decoded(
    chunks: Iterator[bytes], name: str, reading: Reading, first_byte: int
) -> Iterator[str]:
    decoder = io.IncrementalNewlineDecoder(
        codecs.getincrementaldecoder("utf-8")("surrogateescape"), translate=True
    )
    for number, chunk in enumerate(chunks):
        if not number and not first_byte:
            if problem := format_problem(chunk, name):
                if reading.invalid_utf8 != "skip":
                    raise ConfigError(f"{name} is {problem}")
                reading.counts["files_skipped"] += 1
                return
            chunk = chunk.removeprefix(codecs.BOM_UTF8)
        yield decoder.decode(chunk)  # type: ignore[arg-type]
    yield decoder.decode(b"", final=True)  # type: ignore[arg-type]


def _chunks(path: str, part: Part) -> Iterator[bytes]:
    try:
        with storage.Reader(path) as raw, decompressed(raw, path) as file:
            yield from _lines_starting_in(part, file)
    except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
        if isinstance(error, OSError) and error.strerror:
            raise unreadable(path, error) from None
        # From gzip, bz2, lzma or pyarrow.
        is_truncated = isinstance(error, EOFError) or "Truncated" in str(error)
        problem = (
            "is truncated: its compressed data ends early"
            if is_truncated
            else f"is corrupt, or not compressed as its name says ({error})"
        )
        remedy = "copy the file again, or correct its name"
        if "too much memory" in str(error):  # of a frame by zstd --long=31
            problem = f"cannot be decompressed here ({error})"
            remedy = "decompress it with zstd -d --long=31"
        raise ConfigError(f"{path} {problem}; {remedy}") from None


def _lines_starting_in(part: Part, file: Any) -> Iterator[bytes]:
    """Yields, in chunks, the lines of a file whose first byte is in a part."""
    start, stop = part
    if start == stop:
        return
    position = max(0, start - 1)  # a line end before `start` ends the previous line
    if start:
        file.seek(position)
    is_inside = not start
    while chunk := file.read(CHUNK_BYTES):
        while chunk.endswith(b"\r") and (byte := file.read(1)):  # CRLF is one line end
            chunk += byte
        if not is_inside:
            skipped = _end_of_line(chunk, 0)
            position += skipped or len(chunk)
            if not skipped:
                continue
            if stop is not None and position >= stop:
                return
            is_inside, chunk = True, chunk[skipped:]
        if stop is not None:
            end = _end_of_line(chunk, max(0, stop - 1 - position))
            if end:
                yield chunk[:end]
                return
        position += len(chunk)
        yield chunk


def _end_of_line(data: bytes, start: int) -> int:
    """Returns the end of the first line end from an index on, or 0."""
    match = _LINE_END.search(data, start)
    return match.end() if match else 0


def unreadable(path: str, error: OSError) -> ConfigError:
    return ConfigError(
        f"{path} cannot be read ({error.strerror}); check its path and permissions"
    )


def _describe(text: str, where: str, path: str) -> str:
    data = text.encode("utf-8", "surrogateescape")
    start = len(_INVALID_BYTES.split(text, 1)[0].encode())
    before, byte, after = data[:start], data[start], data[start + 1 :]
    advice = "check that it is a text file"
    # An invalid byte between ASCII characters, in a line that was ASCII before it.
    if before.isascii() and after[:1].isascii():
        encoding = "LATIN1" if byte >= 0xA0 else "CP1252"
        advice = f"it looks like {encoding}; {conversion(path, encoding)}"
    elif byte >= 0xC2 and len(after) < 3:
        advice = "the last character is truncated; complete it"
    return (
        f"{where} is not UTF-8 (0x{byte:02x} at byte {start + 1} of the line); {advice}"
    )


# ----------------------------------------------------------- the format of a file

HEAD_BYTES = 4096  # the number of bytes that are examined
COMPRESSED = (".gz", ".bz2", ".xz", ".zst")  # suffixes of file names
# Control characters that do not occur in any text encoding.
_BINARY = re.compile(rb"[\x00-\x06]")
_LFS = b"version https://git-lfs"
# The first bytes of files that are sometimes taken for text, and what to do.
_FORMATS = {
    b"%PDF-": "a PDF file; convert it to text, for example with pdftotext",
    b"PK\x03\x04": (
        "a ZIP archive or an Office document (docx, odt, epub, xlsx); extract its"
        " files, or convert it to text, for example with pandoc"
    ),
    b"\xd0\xcf\x11\xe0": "an Office document (doc, xls, ppt); convert it to text",
    b"{\\rtf": "an RTF document; convert it to text, for example with pandoc",
    b"PAR1": "a Parquet file; data in text or tables is read as parquet:PATH",
    _LFS: "a Git LFS pointer instead of the file; run git lfs pull",
}


def is_divisible(path: str) -> bool:
    """Returns whether `read` accepts parts of a file.

    Only the first bytes show that a file is compressed or in another format.
    """
    with storage.Reader(path) as file:
        is_plain = decompressed(file, path) is file
        return is_plain and format_problem(file.read(HEAD_BYTES), path) is None


def decompressed(file: Any, path: str) -> Any:
    """Returns a reader of the decompressed text; the file itself if it is plain."""
    head = file.read(HEAD_BYTES)
    file.seek(0)
    if head.startswith(_LFS):  # whatever its name ends in
        return file
    if head[:2] == b"\x1f\x8b" or path.endswith(".gz"):
        return gzip.GzipFile(fileobj=file)
    if head[:3] == b"BZh" or path.endswith(".bz2"):
        return bz2.BZ2File(file)
    if head[:6] == b"\xfd7zXZ\x00" or path.endswith(".xz"):
        return lzma.LZMAFile(file)
    if head[:4] == b"\x28\xb5\x2f\xfd" or path.endswith(".zst"):
        import pyarrow

        return pyarrow.CompressedInputStream(pyarrow.PythonFile(file, "r"), "zstd")
    return file


def format_problem(head: bytes, path: str) -> str | None:
    """Describes the format of a file by its first bytes, or returns None for UTF-8.

    The description ends with a remedy.
    """
    for mark, format_ in _FORMATS.items():
        if head.startswith(mark):
            return format_
    if head[257:262] == b"ustar":
        return "a tar archive; extract its files"
    if encoding := _other_encoding(head):
        return f"{encoding}, not UTF-8; {conversion(path, encoding)}"
    head = head[:HEAD_BYTES]
    try:
        # Incrementally, because the bytes may end inside a character.
        codecs.getincrementaldecoder("utf-8")().decode(head)
        least = 0.3  # UTF-8 may have some control characters
    except UnicodeDecodeError:
        least = 0.01
    if len(_BINARY.findall(head)) > max(16, least * len(head)):
        return "a binary file, not text; remove it, or convert it to text"
    return None


def _other_encoding(head: bytes) -> str | None:
    """Returns UTF-16 or UTF-32 if the first bytes of a file indicate it, or None."""
    if head.startswith((codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE)):
        return "UTF-32"  # its mark starts with that of UTF-16
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "UTF-16"
    # In UTF-16 of Latin text, every other byte is NUL, and no byte in between is.
    first, second = head[:HEAD_BYTES:2], head[1:HEAD_BYTES:2]
    for zeros, letters, name in ((first, second, "BE"), (second, first, "LE")):
        if 4 <= len(zeros) <= 2 * zeros.count(0) and not letters.count(0):
            return f"UTF-16{name}"
    return None


def conversion(path: str, encoding: str) -> str:
    """Returns how to convert a file or, if `path` is "", a text to UTF-8."""
    is_text = os.path.isfile(path)  # not: in a bucket, or stdin
    if is_text:
        with open(path, "rb") as file:
            is_text = decompressed(file, path) is file
    if not is_text:
        return "convert its text to UTF-8"
    return (
        f"convert it: f={shlex.quote(path)};"
        f' iconv -f {encoding} -t UTF-8 "$f" > "$f.utf8" && mv "$f.utf8" "$f"'
    )
