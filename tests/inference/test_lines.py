"""Lines are read unchanged from a file or standard input."""

import io
import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from bert_jax.errors import ConfigError
from bert_jax.inference import lines

LINES = ["w1 w2 ||| w3", "", "W4 nowhere", "w5 ||| w6 ||| w7"]


def give(monkeypatch, content: bytes):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(content)))


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_a_file_and_standard_input_have_the_same_lines(
    monkeypatch, tmp_path, end, mark
):
    content = (mark + end.join([*LINES, "w8" * 5000, "w9"])).encode()
    for name in ("-", "/dev/stdin"):
        give(monkeypatch, content)
        found = list(lines.read(name))
        assert found == [*LINES, "w8" * 5000, "w9"]
    os.mkfifo(tmp_path / "pipe")
    with ThreadPoolExecutor(1) as pool:
        pool.submit((tmp_path / "pipe").write_bytes, content)
        assert list(lines.read(str(tmp_path / "pipe"))) == found
    (tmp_path / "lines.txt").write_bytes(content)
    assert list(lines.read(str(tmp_path / "lines.txt"))) == found


def test_invalid_utf8_on_standard_input_is_an_error(monkeypatch):
    give(monkeypatch, b"a\ncaf\xe9\n")
    with pytest.raises(ConfigError, match="/dev/stdin:2"):
        list(lines.read("-"))


@pytest.mark.parametrize(
    "max_parts, last", [(2, ("w5", "w6 ||| w7")), (9, ("w5", "w6", "w7"))]
)
def test_lines_are_read_in_chunks_in_order(max_parts, last, monkeypatch, tmp_path):
    monkeypatch.setattr(lines, "LINES_AT_ONCE", 3)
    path = tmp_path / "lines.txt"
    path.write_text("\n".join(LINES) + "\n")
    found = list(lines.read_chunks(str(path), max_parts))
    assert found == [[("w1 w2", "w3"), ("",), ("W4 nowhere",)], [last]]


def test_uniform_lines_have_the_same_number_of_parts(monkeypatch, tmp_path):
    monkeypatch.setattr(lines, "LINES_AT_ONCE", 1)
    path = tmp_path / "lines.txt"
    path.write_text("a ||| b\nc ||| d\ne\n")
    found = lines.read_chunks(str(path), 2, is_uniform=True)
    assert [next(found), next(found)] == [[("a", "b")], [("c", "d")]]
    with pytest.raises(ConfigError, match="line 'e' with 1 part, but its first .* 2"):
        next(found)


def test_an_empty_file_is_an_error(tmp_path):
    (tmp_path / "empty.txt").touch()
    with pytest.raises(ConfigError, match="has no lines"):
        list(lines.read_chunks(str(tmp_path / "empty.txt"), 2))


@pytest.mark.parametrize("name", ["lines.txt", "lines.csv", "lines.HTML"])
def test_a_file_that_is_named_as_a_table_or_markup_is_reported(name, tmp_path, capsys):
    (tmp_path / name).write_text("text,label\na,1\n")
    texts = []
    number, _ = lines.process(
        str(tmp_path / name),
        1,
        lambda chunk, on_batch: chunk,
        lambda chunk, _: texts.extend(chunk),
        None,
    )
    assert number == 2 and texts == [("text,label",), ("a,1",)]
    note = capsys.readouterr().err
    assert note.count("\n") == (name != "lines.txt")
    assert not note or f"--input={tmp_path / name}: every line is read as" in note
