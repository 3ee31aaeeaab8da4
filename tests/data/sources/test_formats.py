"""Tests of bert_jax.data.sources.lines: files that are not UTF-8 text are named."""

import collections
import io
import tarfile

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

from bert_jax.errors import ConfigError
from tests.data.sources.test_lines import PACKERS, read, write


def archive():
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as file:
        file.addfile(tarfile.TarInfo("a.txt"))
    return buffer.getvalue()


def table():
    buffer = io.BytesIO()
    parquet.write_table(pyarrow.table({"text": ["One."] * 100}), buffer)
    return buffer.getvalue()


def array():
    buffer = io.BytesIO()
    np.save(buffer, np.arange(100))
    return buffer.getvalue()


@pytest.mark.parametrize("pack", [bytes, PACKERS[0]])
@pytest.mark.parametrize("invalid_utf8", ["error", "replace", None])
@pytest.mark.parametrize(
    "content, message",
    [
        (b"%PDF-1.4\n%\xe2\xe3\xcf\xd3\n1 0 obj", "a is a PDF .*with pdftotext$"),
        (b"%PDF-1.4\n1 0 obj", "a is a PDF file; convert it to text"),
        (b"PK\x03\x04\x14\x00\x06\x00", "an Office document .docx, .* to text"),
        (b"\xd0\xcf\x11\xe0\xa1\xb1", "an Office document .doc, .* to text"),
        (b"{\\rtf1\\ansi One.}", "an RTF document; convert it to text"),
        (archive(), "a tar archive; extract its files"),
        (table(), "a Parquet file; .* parquet:GLOB$"),
        (array(), "a binary file, not text; remove it"),
    ],
)
def test_a_file_in_another_format_is_an_error(
    tmp_path, content, message, invalid_utf8, pack
):
    path = write(tmp_path / "a", pack(content))
    with pytest.raises(ConfigError, match=message):
        read(path, invalid_utf8=invalid_utf8)
    counts = collections.Counter()
    assert read(path, invalid_utf8="skip", counts=counts) == []
    assert counts == {"files_skipped": 1}


@pytest.mark.parametrize(
    "codec, name",
    [
        ("utf-16", "UTF-16"),
        ("utf-32", "UTF-32"),
        ("utf-16-le", "UTF-16LE"),
        ("utf-16-be", "UTF-16BE"),
    ],
)
def test_utf16_and_utf32_are_named(tmp_path, codec, name):
    path = write(tmp_path / "a b", "One is first. Caf\u00e9.".encode(codec))
    for policy in ("error", "replace"):
        with pytest.raises(ConfigError, match=f"a b is {name}, .*iconv -f {name} .*'$"):
            read(path, invalid_utf8=policy)
    counts = collections.Counter()
    assert read(path, invalid_utf8="skip", counts=counts) == []
    assert counts == {"files_skipped": 1}


@pytest.mark.parametrize(
    "content",
    [b"a\0b\0", b"\0\0\0\0\0\0\0\0", b"word\0word\0word", b"w\0o r\xc3\xa9 " * 999],
)
def test_text_with_some_zeros_is_text(tmp_path, content):
    assert read(write(tmp_path / "a", content)) == [(1, content.decode())]
