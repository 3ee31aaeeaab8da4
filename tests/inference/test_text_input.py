"""Lines come as they were given, from a file or from standard input."""

import io

import pytest

from bert_jax.errors import ConfigError
from bert_jax.inference import text_input

LINES = ["w1 w2 ||| w3", "", "W4 nowhere", "w5 ||| w6 ||| w7"]


def give(monkeypatch, content: bytes):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(content)))


def test_standard_input_with_any_line_end(monkeypatch):
    give(monkeypatch, "\r\n".join(LINES).encode())
    assert list(text_input.read("-")) == LINES


def test_a_byte_order_mark_is_no_part_of_the_text(monkeypatch):
    give(monkeypatch, b"\xef\xbb\xbfw1\nw2\n")
    assert list(text_input.read("-")) == ["w1", "w2"]


def test_wrong_bytes_on_standard_input_are_told(monkeypatch):
    give(monkeypatch, b"a\ncaf\xe9\n")
    with pytest.raises(ConfigError, match="standard input:2"):
        list(text_input.read("-"))


@pytest.mark.parametrize(
    "max_parts, last", [(2, ("w5", "w6 ||| w7")), (9, ("w5", "w6", "w7"))]
)
def test_some_at_a_time_in_their_order(max_parts, last, monkeypatch, tmp_path):
    monkeypatch.setattr(text_input, "LINES_AT_ONCE", 3)
    path = tmp_path / "lines.txt"
    path.write_text("\n".join(LINES) + "\n")
    found = list(text_input.batches(str(path), max_parts))
    assert found == [[("w1 w2", "w3"), ("",), ("W4 nowhere",)], [last]]


def test_no_lines(tmp_path):
    (tmp_path / "empty.txt").touch()
    with pytest.raises(ConfigError, match="has no lines"):
        list(text_input.batches(str(tmp_path / "empty.txt"), 2))
