"""Tests of bert_jax.data.sources.lines: encodings, compression, unreadable files."""

import bz2
import collections
import gzip
import io
import lzma
import subprocess
import tarfile

import numpy as np
import pyarrow
import pytest

from bert_jax.data.sources import lines
from bert_jax.errors import ConfigError
from tests.corpora import parquet_bytes


def zstd(data):
    return pyarrow.compress(data, codec="zstd", asbytes=True)


PACKERS = (gzip.compress, bz2.compress, lzma.compress, zstd)


def read(path, max_bytes=2**20, invalid_utf8="error", counts=None, part=lines.WHOLE):
    counts = collections.Counter() if counts is None else counts
    reading = lines.Reading(counts, invalid_utf8, max_bytes)
    return list(lines.read(str(path), reading, part))


def write(path, content):
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("chunk_bytes", [1, 2, 3, 7, 64, 2**20])
@pytest.mark.parametrize("pack", [bytes, *PACKERS])
def test_lines_equal_those_of_python_for_any_chunk_size(
    tmp_path, monkeypatch, chunk_bytes, pack
):
    """CRLF and characters cross chunk boundaries; io.StringIO is the reference."""
    monkeypatch.setattr(lines, "CHUNK_BYTES", chunk_bytes)
    rng = np.random.default_rng(0)
    alphabet = list("ab \t\u00e9\u4f60\U0001f600\u2028\x85") + ["\n", "\r", "\r\n"] * 2
    for _ in range(20):
        text = "".join(rng.choice(alphabet, 60))
        path = write(tmp_path / "a", pack(text.encode()))
        expected = io.StringIO(text, newline=None).read().split("\n")
        if expected[-1] == "":
            expected.pop()
        assert read(path) == list(enumerate(expected, start=1))


@pytest.mark.parametrize("chunk_bytes", [1, 5, 2**20])
@pytest.mark.parametrize(
    "content",
    [b"\n\na\r\nb c\n\nde\n", b"abc", b"ab\ncd", b"", b"a\rbc\r\r\nd\r", b"\r\r\n\n\r"],
)
def test_every_line_is_in_one_part(tmp_path, monkeypatch, chunk_bytes, content):
    monkeypatch.setattr(lines, "CHUNK_BYTES", chunk_bytes)
    path = write(tmp_path / "a", content)
    expected = [line for _, line in read(path)]
    divided = [read(path, part=(0, i)) for i in range(len(content) + 2)]
    assert len(set(map(len, divided))) == len(expected) + 1  # at CR as well
    for middle in range(len(content) + 2):
        for last in (middle, middle + 1, middle + 3):
            parts = [(0, middle), (middle, last), (last, None)]
            found = [line for part in parts for _, line in read(path, part=part)]
            assert found == expected, parts


def test_a_part_names_its_first_byte_in_errors(tmp_path):
    path = write(tmp_path / "a", b"good\nbad\xff\n")
    with pytest.raises(ConfigError, match=r"a:2 is not UTF-8"):
        read(path)
    assert read(path, part=(0, 4)) == [(1, "good")]
    with pytest.raises(ConfigError, match=r"a:1 \(counted from byte 4\) is not UTF-8"):
        read(path, part=(4, None))


def test_a_byte_order_mark_at_the_start_is_dropped(tmp_path):
    content = b"\xef\xbb\xbfa\n\xef\xbb\xbfb"
    assert read(write(tmp_path / "a", content)) == [(1, "a"), (2, "\ufeffb")]


@pytest.mark.parametrize("chunk_bytes", [5, 16, 2**20])
@pytest.mark.parametrize("unit", ["ab ", "a", "\u4f60", "\U0001f600\u00e9 x"])
def test_long_lines_are_split_into_the_same_parts_for_any_chunk_size(
    tmp_path, monkeypatch, chunk_bytes, unit
):
    monkeypatch.setattr(lines, "CHUNK_BYTES", chunk_bytes)
    long = unit * 50
    path = write(tmp_path / "a", f"short\n{long}\nend".encode())
    found = read(path, max_bytes=16)
    assert found[0] == (1, "short") and found[-1] == (3, "end")
    parts = [line for number, line in found if number == 2]
    assert parts == lines.cut(long, 16)
    assert max(len(part.encode()) for part in parts) <= 16
    assert "".join(parts).replace(" ", "") == long.replace(" ", "")


def test_cut_prefers_the_last_space():
    assert lines.cut("one two three", 9) == ["one two", "three"]
    assert lines.cut("one two three", 7) == ["one two", "three"]
    assert lines.cut("one two three", 6) == ["one", "two", "three"]
    assert lines.cut("abcdefgh", 4) == ["abcd", "efgh"]
    assert lines.cut("\u4f60\u597d", 4) == ["\u4f60", "\u597d"]
    assert lines.cut("short", 9) == ["short"]


def test_cut_ends_for_bytes_that_are_not_utf8():
    text = "\udc80" * 6  # continuation bytes without a first byte
    assert lines.cut(text, 4) == [text[:1], text[1:2], text[2:]]


# ---------------------------------------------------------------- invalid bytes


@pytest.mark.parametrize(
    "content, message",
    [
        (b"ok\ncaf\xe9 au lait", r"a:2 is .*0xe9 at byte 4 .* iconv -f LATIN1 "),
        (b"a \x93quote\x94", "a:1 is .*0x93 at byte 3 .* iconv -f CP1252"),
        ("\u4f60\u597d".encode()[:-1], "a:1 is .* byte 4 .*character is truncated"),
        (
            b"\xc3\xa9t\xc3\xa9 \xff\xfe\xfd x",
            "a:1 .*0xff at byte 7 .*check that it is a text",
        ),
        (b"ok\n\n" + b"x" * 5000 + b" \x80", "a:3 is .*0x80 at byte 5002"),
        (b"\xed\xa0\x80 surrogate", "a:1 is .*0xed at byte 1"),
        (b"\xc0\xaf overlong", "a:1 is .*0xc0 at byte 1"),
    ],
)
def test_invalid_bytes_are_named_with_file_line_and_byte(tmp_path, content, message):
    path = write(tmp_path / "a", content)
    with pytest.raises(ConfigError, match=message) as error:
        read(path, invalid_utf8=None)
    assert "invalid_utf8" not in str(error.value)  # only pretraining has this key
    with pytest.raises(ConfigError, match=message + ".*set config.data.invalid_utf8"):
        read(path)


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_the_advice_suits_the_file(tmp_path, pack):
    path = write(tmp_path / "it's a:b \u00e9 $HOME", pack(b"caf\xe9 au lait"))
    with pytest.raises(ConfigError, match="looks like LATIN1; convert ") as error:
        read(path, invalid_utf8=None)
    advice = str(error.value).partition("LATIN1; ")[2]
    if pack is gzip.compress:
        assert advice == "convert its text to UTF-8"
    else:
        subprocess.run(advice.removeprefix("convert it: "), shell=True, check=True)
        assert read(path) == [(1, "caf\u00e9 au lait")]
        assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("chunk_bytes", [3, 2**20])
def test_invalid_bytes_replaced_or_kept(tmp_path, monkeypatch, chunk_bytes):
    monkeypatch.setattr(lines, "CHUNK_BYTES", chunk_bytes)
    path = write(tmp_path / "a", b"good\na\xff\xfeb\xe9\n\xc3\xa9\nend\xe4")
    counts = collections.Counter()
    found = [line for _, line in read(path, invalid_utf8="replace", counts=counts)]
    assert found == ["good", "a\ufffdb\ufffd", "\u00e9", "end\ufffd"]
    assert counts == {"lines_repaired": 2}
    found = [line for _, line in read(path, invalid_utf8="skip", counts=counts)]
    assert [lines.is_utf8(line) for line in found] == [True, False, True, False]


# -------------------------------------------------------------- unreadable files


def test_truncated_compressed_data(tmp_path):
    text = "".join(f"line {i}\n" for i in range(5000)).encode()
    for pack in PACKERS:
        for keep in (0.9, 0.5):
            packed = pack(text)
            path = write(tmp_path / "a", packed[: int(keep * len(packed))])
            with pytest.raises(
                ConfigError, match="a is truncated: .*copy the file again"
            ):
                read(path)


def test_corrupt_compressed_data(tmp_path):
    packed = bytearray(gzip.compress(bytes(range(128)) * 500))
    packed[-6] ^= 1  # a bit of the checksum
    with pytest.raises(ConfigError, match="a is corrupt, or not .*CRC check failed"):
        read(write(tmp_path / "a", bytes(packed)))
    for name in ("gz", "bz2", "xz", "zst"):
        with pytest.raises(ConfigError, match=f"a.{name} is corrupt, .*copy the file"):
            read(write(tmp_path / f"a.{name}", b"plain text"))


def test_a_zstd_frame_that_needs_much_memory(tmp_path):
    """One raw block of a byte, in a window of 2 GB, as zstd --long=31 writes."""
    frame = b"\x28\xb5\x2f\xfd\x00\xa8\x09\x00\x00a"
    path = write(tmp_path / "a.zst", frame)
    with pytest.raises(ConfigError, match="decompress it with zstd -d --long=31$"):
        read(path)


def test_several_compressed_streams_in_a_file_are_read_in_order(tmp_path):
    for pack in PACKERS:
        path = write(tmp_path / "a", pack(b"one\ntw") + pack(b"o\nthree\n"))
        assert read(path) == [(1, "one"), (2, "two"), (3, "three")]


def test_files_that_cannot_be_opened(tmp_path, monkeypatch):
    with pytest.raises(ConfigError, match="none cannot be read .No such file"):
        read(tmp_path / "none")
    with pytest.raises(ConfigError, match="cannot be read .Is a directory"):
        read(tmp_path)

    def denied(path, mode):
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr("builtins.open", denied)
    with pytest.raises(ConfigError, match="a cannot be read .Permission denied"):
        read(tmp_path / "a")


def test_bad_lines_are_collected_in_read_counts(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"one\n" + b"\xff\n" * 30 + b"two\n")
    counts = lines.ReadCounts()
    for _ in range(10):
        counts.num_of_file = 0
        found = [text for _, text in read(path, counts=counts)]
        assert found == ["one", *["\ufffd"] * 30, "two"]
    assert counts.num_bad == 300 and counts == {}
    assert len(counts.messages) == lines.LISTED
    assert f"{path}:4 is not UTF-8" in counts.messages[2]
    assert f"{path}:2 is not UTF-8" in counts.messages[3]


# ------------------------------------------------------------- files of other formats


def archive():
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as file:
        file.addfile(tarfile.TarInfo("a.txt"))
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
        (parquet_bytes({"text": ["One."] * 100}), "a Parquet file; .* parquet:PATH$"),
        (b"version https://git-lfs.github.com/spec/v1\noid", "; run git lfs pull$"),
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


@pytest.mark.parametrize("name", ["UTF-16", "UTF-32", "UTF-16LE", "UTF-16BE"])
def test_utf16_and_utf32_are_named(tmp_path, name):
    path = write(tmp_path / "a b", "One is first. Caf\u00e9.".encode(name))
    for policy in ("error", "replace"):
        with pytest.raises(ConfigError, match=f"a b is {name}, .*iconv -f {name} "):
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
