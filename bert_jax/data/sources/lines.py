"""A file -> its numbered lines: decompression, decoding, and a limit on memory.

sources.py makes documents of the lines. Files are read a chunk at a time, so memory
stays bounded whatever the size of a file or of a line.
"""

import bz2
import codecs
import collections
import gzip
import io
import re
import shlex
import zlib
from collections.abc import Callable, Iterator
from typing import Any

from bert_jax import storage
from bert_jax.errors import ConfigError

CHUNK_BYTES = 2**20
# Bad lines that are kept for a report, of one file and of all.
LISTED_OF_FILE = 3
LISTED = 20
# Byte order marks; UTF-32's begins with UTF-16's.
_MARKS = {
    codecs.BOM_UTF32_LE: "UTF-32",
    codecs.BOM_UTF32_BE: "UTF-32",
    codecs.BOM_UTF16_LE: "UTF-16",
    codecs.BOM_UTF16_BE: "UTF-16",
}
# Bytes that are not UTF-8, as the decoder hands them on ("surrogateescape").
_WRONG_BYTES = re.compile("[\udc80-\udcff]+")


class ReadCounts(collections.Counter[str]):
    """Counts what reading changed, and collects the lines that cannot be read.

    Given to a reader instead of a plain Counter: the reader then drops a bad line and
    continues, where it would raise ConfigError.

    Attributes:
      num_bad: number of bad lines.
      bad: the first messages, at most LISTED_OF_FILE of each file.
    """

    def __init__(self):
        super().__init__()
        self.num_bad = 0
        self.bad: list[str] = []
        self._num_of_file = 0

    def start_file(self) -> None:
        self._num_of_file = 0

    def reject(self, error: ConfigError) -> None:
        self.num_bad += 1
        self._num_of_file += 1
        if self._num_of_file <= LISTED_OF_FILE and len(self.bad) < LISTED:
            self.bad.append(str(error))


def reject(counts: collections.Counter[str], error: ConfigError) -> None:
    """Collects the error of a bad line in ReadCounts, or raises it."""
    if not isinstance(counts, ReadCounts):
        raise error
    counts.reject(error)


def read(
    path: str,
    max_bytes: int,
    invalid_utf8: str | None,
    counts: collections.Counter[str],
) -> Iterator[tuple[int, str]]:
    """Yields the number and text of every line of a file, blank lines included.

    A line ends at LF, CR or CRLF. Files that are gzip or bzip2 are decompressed, told
    by their first bytes. A byte order mark at the start is dropped.

    Args:
      path: of a local file, or anything TensorFlow's file systems know.
      max_bytes: a longer line comes in parts of up to so many bytes of UTF-8, all
        under the line's number.
      invalid_utf8: what to do about bytes that are not UTF-8. "error" raises, and
        names the config's key, which None does not; "replace" makes U+FFFD of each run
        of them; "skip" leaves them in the line as half surrogates, by which `is_utf8`
        knows it.
      counts: counted up by "lines_repaired" and "files_skipped".

    Raises:
      ConfigError: when the file cannot be read, is cut off or damaged, is UTF-16 or
        UTF-32, or is not UTF-8 and that is an error. Names the file and line.
    """
    number, pending, suspect = 1, "", False
    for text in _decoded(path, invalid_utf8, counts):
        suspect = suspect or not is_utf8(text)
        *whole, pending = (pending + text).split("\n")
        for line in whole:
            if suspect:
                line = repair(line, f"{path}:{number}", invalid_utf8, counts)
            # A character of UTF-8 has up to four bytes.
            if len(line) * 4 <= max_bytes:
                yield number, line
            else:
                for part in cut(line, max_bytes):
                    yield number, part
            number += 1
        if len(pending) > max_bytes:
            if suspect:
                pending = repair(pending, f"{path}:{number}", invalid_utf8, counts)
            *parts, pending = cut(pending, max_bytes)
            for part in parts:
                yield number, part
        suspect = suspect and not is_utf8(pending)
    if pending:
        line = repair(pending, f"{path}:{number}", invalid_utf8, counts)
        for part in cut(line, max_bytes):
            yield number, part


def is_utf8(text: str) -> bool:
    """Returns whether all of a text was UTF-8, before it was decoded."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def repair(
    text: str, where: str, invalid_utf8: str | None, counts: collections.Counter[str]
) -> str:
    """Applies `invalid_utf8`, as in `read`, to a line decoded with "surrogateescape".

    Raises:
      ConfigError: when it is "error" or None and the text has wrong bytes; names
        `where`.
    """
    if is_utf8(text) or invalid_utf8 == "skip":
        return text
    if invalid_utf8 == "error":
        hint = ", or set config.data.invalid_utf8 to replace or skip"
        reject(counts, ConfigError(_describe(text, where) + hint))
    elif invalid_utf8 is None:
        raise ConfigError(_describe(text, where))
    else:
        counts["lines_repaired"] += 1
    return _WRONG_BYTES.sub("\ufffd", text)


def whole_characters(text: str) -> str:
    """Returns a text from JSON with ? for half a surrogate pair, which is no text."""
    return text if is_utf8(text) else text.encode("utf-8", "replace").decode()


def num_bytes(text: str) -> int:
    """Returns the length of a text in bytes of UTF-8."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogateescape"))


def cut(text: str, max_bytes: int) -> list[str]:
    """Returns the text in parts of at most `max_bytes` of UTF-8, at least 4.

    A cut falls on a space, which is dropped, or between two characters where there is
    no space. Concatenated with those spaces the parts are the text.
    """
    data = text.encode("utf-8", "surrogateescape")
    parts, start = [], 0
    while len(data) - start > max_bytes:
        end = data.rfind(b" ", start + 1, start + max_bytes + 1)
        skipped = 1
        if end < 0:
            end, skipped = start + max_bytes, 0
            while data[end] & 0xC0 == 0x80 and end > start + max_bytes - 4:
                end -= 1  # a continuation byte
        parts.append(data[start:end])
        start = end + skipped
    parts.append(data[start:])
    return [part.decode("utf-8", "surrogateescape") for part in parts]


def _decoded(
    path: str, invalid_utf8: str | None, counts: collections.Counter[str]
) -> Iterator[str]:
    """Yields the text of a file in chunks, with LF as the only end of line."""
    decoder = io.IncrementalNewlineDecoder(
        codecs.getincrementaldecoder("utf-8")("surrogateescape"), translate=True
    )
    is_first = True
    for chunk in _chunks(path):
        if is_first:
            encoding = _other_encoding(chunk)
            if encoding and invalid_utf8 == "skip":
                counts["files_skipped"] += 1
                return
            if encoding:
                raise ConfigError(
                    f"{path} is {encoding}, not UTF-8; {_convert(path, encoding)}"
                )
            chunk = chunk.removeprefix(codecs.BOM_UTF8)
            is_first = False
        yield decoder.decode(chunk)  # type: ignore[arg-type]
    yield decoder.decode(b"", final=True)  # type: ignore[arg-type]


def _chunks(path: str) -> Iterator[bytes]:
    try:
        with storage.Reader(path) as raw, _decompressed(raw, path) as file:
            while chunk := file.read(CHUNK_BYTES):
                yield chunk
    except EOFError:
        raise ConfigError(
            f"{path} is cut off: its compressed data has no end; copy it again"
        ) from None
    except (zlib.error, gzip.BadGzipFile) as error:
        raise ConfigError(
            f"{path} is damaged or not gzip ({error}); copy it again"
        ) from None
    except OSError as error:
        problem = error.strerror or str(error)
        raise ConfigError(f"{path} cannot be read ({problem})") from None


def is_compressed(path: str) -> bool:
    """Returns whether `read` decompresses a file."""
    with storage.Reader(path) as file:
        return _decompressor(file, path) is not None


def _decompressed(file: Any, path: str) -> Any:
    decompressor = _decompressor(file, path)
    file.seek(0)
    return decompressor(file) if decompressor else file


def _decompressor(file: Any, path: str) -> Callable[[Any], Any] | None:
    head = file.read(3)
    if head[:2] == b"\x1f\x8b" or path.endswith(".gz"):
        return lambda file: gzip.GzipFile(fileobj=file)
    if head == b"BZh" or path.endswith(".bz2"):
        return bz2.BZ2File
    return None


def _other_encoding(head: bytes) -> str | None:
    """Names the encoding of a file that is surely not UTF-8, by its first bytes."""
    for mark, name in _MARKS.items():
        if head.startswith(mark):
            return name
    # Without a mark: every other byte of Latin text is NUL, the others never are.
    first, second = head[:4096:2], head[1:4096:2]
    for zeros, letters, name in ((first, second, "BE"), (second, first, "LE")):
        if 4 <= len(zeros) <= 2 * zeros.count(0) and not letters.count(0):
            return f"UTF-16{name}"
    return None


# Control characters that no encoding of text has.
_BINARY = re.compile(rb"[\x00-\x06]")


def _describe(text: str, where: str) -> str:
    """Returns what to tell the user of a line that is not UTF-8."""
    data = text.encode("utf-8", "surrogateescape")
    start = len(_WRONG_BYTES.split(text, 1)[0].encode())
    before, byte, after = data[:start], data[start], data[start + 1 :]
    if _BINARY.search(data):
        advice = "it is no text; leave the file out"
    # One byte between ASCII, in a line without a single good character of UTF-8.
    elif before.isascii() and after[:1].isascii():
        encoding = "LATIN1" if byte >= 0xA0 else "CP1252"
        advice = f"it looks like {encoding}; {_convert(where, encoding)}"
    elif byte >= 0xC2 and len(after) < 3:
        advice = "the last character is cut off; complete it"
    else:
        advice = "is it text?"
    return (
        f"{where} is not UTF-8, with 0x{byte:02x} as byte {start + 1} of the line;"
        f" {advice}"
    )


def _convert(where: str, encoding: str) -> str:
    path = shlex.quote(where.partition(":")[0])
    return f"convert it: iconv -f {encoding} -t UTF-8 {path}"
