"""Recognizes the compression, encoding and format of a file by its first bytes."""

import bz2
import codecs
import gzip
import lzma
import re
import shlex
from collections.abc import Callable
from typing import Any

from bert_jax import storage

HEAD_BYTES = 4096  # the number of bytes that are examined
COMPRESSED = (".gz", ".bz2", ".xz", ".zst")  # suffixes of file names
# Byte order marks. UTF-32 comes first, because its mark starts with that of UTF-16.
_MARKS = {
    codecs.BOM_UTF32_LE: "UTF-32",
    codecs.BOM_UTF32_BE: "UTF-32",
    codecs.BOM_UTF16_LE: "UTF-16",
    codecs.BOM_UTF16_BE: "UTF-16",
}
# Control characters that do not occur in any text encoding.
BINARY = re.compile(rb"[\x00-\x06]")
# The first bytes of files that are sometimes taken for text, and what to do.
_FORMATS = {
    b"%PDF-": "a PDF file; convert it to text, for example with pdftotext",
    b"PK\x03\x04": (
        "a ZIP archive or an Office document (docx, odt, epub, xlsx); extract its"
        " files, or convert it to text, for example with pandoc"
    ),
    b"\xd0\xcf\x11\xe0": "an Office document (doc, xls, ppt); convert it to text",
    b"{\\rtf": "an RTF document; convert it to text, for example with pandoc",
    b"PAR1": "a Parquet file; a source of text reads it as parquet:GLOB",
}


def is_divisible(path: str) -> bool:
    """Returns whether `lines.read` accepts parts of a file.

    Only the first bytes show that a file is compressed or in another format.
    """
    with storage.Reader(path) as file:
        head = file.read(HEAD_BYTES)
    return _decompressor(head, path) is None and problem(head, path) is None


def decompressed(file: Any, path: str) -> Any:
    """Returns a reader of the decompressed content of an open file."""
    decompressor = _decompressor(file.read(HEAD_BYTES), path)
    file.seek(0)
    return decompressor(file) if decompressor else file


def _decompressor(head: bytes, path: str) -> Callable[[Any], Any] | None:
    if head[:2] == b"\x1f\x8b" or path.endswith(".gz"):
        return lambda file: gzip.GzipFile(fileobj=file)
    if head[:3] == b"BZh" or path.endswith(".bz2"):
        return bz2.BZ2File
    if head[:6] == b"\xfd7zXZ\x00" or path.endswith(".xz"):
        return lzma.LZMAFile
    if head[:4] == b"\x28\xb5\x2f\xfd" or path.endswith(".zst"):
        return _zstd
    return None


def _zstd(file: Any) -> Any:
    import pyarrow

    return pyarrow.CompressedInputStream(pyarrow.PythonFile(file, "r"), "zstd")


def problem(head: bytes, path: str) -> str | None:
    """Describes the format of a file by its first bytes, or returns None for UTF-8.

    The description ends with a remedy.
    """
    for mark, format_ in _FORMATS.items():
        if head.startswith(mark):
            return format_
    if head[257:262] == b"ustar":
        return "a tar archive; extract its files"
    encoding = _other_encoding(head)
    if encoding:
        return f"{encoding}, not UTF-8; {conversion(path, encoding)}"
    if _is_binary(head[:HEAD_BYTES]):
        return "a binary file, not text; remove it, or convert it to text"
    return None


def _is_binary(head: bytes) -> bool:
    """Returns whether bytes are not text; UTF-8 may have some control characters."""
    try:
        # Incrementally, because the bytes may end inside a character.
        codecs.getincrementaldecoder("utf-8")().decode(head)
        least = 0.3
    except UnicodeDecodeError:
        least = 0.01
    return len(BINARY.findall(head)) > max(16, least * len(head))


def _other_encoding(head: bytes) -> str | None:
    """Returns UTF-16 or UTF-32 if the first bytes of a file indicate it, or None."""
    for mark, name in _MARKS.items():
        if head.startswith(mark):
            return name
    # In UTF-16 of Latin text, every other byte is NUL, and no byte in between is.
    first, second = head[:HEAD_BYTES:2], head[1:HEAD_BYTES:2]
    for zeros, letters, name in ((first, second, "BE"), (second, first, "LE")):
        if 4 <= len(zeros) <= 2 * zeros.count(0) and not letters.count(0):
            return f"UTF-16{name}"
    return None


def conversion(path: str, encoding: str) -> str:
    """Returns the command that converts a file to UTF-8, as advice in a message."""
    return f"convert it: iconv -f {encoding} -t UTF-8 {shlex.quote(path)}"
