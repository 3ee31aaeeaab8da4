"""Tests of bert_jax.data.sources.parquet, with JSON Lines of the text as reference."""

import collections
import json
import re

import pyarrow
import pytest
from pyarrow import parquet

from bert_jax.data.sources import parquet as parquet_lib
from bert_jax.data.sources import sources
from bert_jax.errors import ConfigError
from tests.commands import flip
from tests.conftest import make_config

TEXTS = [f"Text {i} is first.\nIt has caf\u00e9 number {i}." for i in range(1000)]
TEXTS[7] = ""


def documents(spec, counts=None, **changes):
    data = make_config(**{f"data__{key}": value for key, value in changes.items()}).data
    counts = collections.Counter() if counts is None else counts
    return [found.lines for found in sources.read(spec, data, counts)]


def write(path, columns, **options):
    parquet.write_table(pyarrow.table(columns), path, **options)
    return path


@pytest.fixture
def expected(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    return documents(f"jsonl:{path}#text")


@pytest.mark.parametrize(
    ("codec", "rows"), [("none", 1), ("snappy", 100), ("zstd", 100), ("gzip", 10_000)]
)
def test_documents_equal_those_of_json_lines(tmp_path, expected, codec, rows):
    columns = {"id": range(len(TEXTS)), "text": TEXTS}
    path = write(
        tmp_path / "a.parquet", columns, compression=codec, row_group_size=rows
    )
    assert documents(f"parquet:{path}#text") == expected


@pytest.mark.parametrize("is_in_struct", [False, True])
@pytest.mark.parametrize(
    "kind",
    [
        pyarrow.string(),
        pyarrow.large_string(),
        pyarrow.string_view(),
        pyarrow.dictionary("int32", "str"),
        pyarrow.json_(),
        pyarrow.binary(),
        pyarrow.large_binary(),
        pyarrow.binary_view(),
    ],
    ids=str,
)
def test_every_type_of_text_is_read(tmp_path, expected, kind, is_in_struct):
    values = pyarrow.array(TEXTS).cast(kind)
    if is_in_struct:
        values = pyarrow.StructArray.from_arrays([values], ["b"])
    path = write(tmp_path / "a.parquet", {"a": values, "tags": [["t"]] * len(TEXTS)})
    name = "a.b" if is_in_struct else "a"
    assert documents(f"parquet:{path}#{name}") == expected


def test_the_column_may_be_omitted_if_it_is_text_or_the_only_one_of_text(tmp_path):
    path = write(tmp_path / "a.parquet", {"id": [1], "body": ["One."], "b": [b"x"]})
    for spec in (f"parquet:{path}", f"parquet:{path}#"):
        assert documents(spec) == [("One.",)]
    write(path, {"a": ["x"], "text": ["One."]})
    assert documents(f"parquet:{path}") == [("One.",)]
    write(path, {"a": ["x"], "b": ["One."]})
    with pytest.raises(ConfigError, match="no single column of text; append .*: a, b$"):
        documents(f"parquet:{path}")


def test_text_that_is_stored_as_bytes_is_found_like_text(tmp_path):
    path = write(tmp_path / "a.parquet", {"url": ["u"], "text": [b"One."]})
    assert documents(f"parquet:{path}") == [("One.",)]
    write(path, {"id": [1], "jpeg": [b"\xff\xd8"]})  # may be anything, so only if named
    with pytest.raises(ConfigError, match="no single column of text; append .*: jpeg$"):
        documents(f"parquet:{path}")


def test_a_field_of_a_struct_and_a_column_with_a_dot(tmp_path, expected):
    rows = [{"body": {"text": text, "n": 1}} for text in TEXTS]
    rows[3], rows[4]["body"]["text"] = None, None  # nulls are empty documents
    path = write(tmp_path / "a.parquet", {"article": rows, "a.text": TEXTS})
    assert documents(f"parquet:{path}#a.text") == expected
    columns = {"a": [{"text": "field", "b": 1}] * len(TEXTS), "a.text": TEXTS}
    for names in (["a", "a.text"], ["a.text", "a"]):  # the column wins
        write(tmp_path / "b.parquet", {name: columns[name] for name in names})
        assert documents(f"parquet:{tmp_path}/b.parquet#a.text") == expected
    expected[3] = expected[4] = ()
    assert documents(f"parquet:{path}#article.body.text") == expected


def test_a_row_group_is_not_read_at_once(tmp_path, monkeypatch, expected):
    small_pages = {"data_page_size": 1000, "write_batch_size": 20}
    options = small_pages | {"use_dictionary": False, "compression": "none"}
    path = write(tmp_path / "a.parquet", {"text": TEXTS}, **options)
    assert parquet.ParquetFile(path).num_row_groups == 1
    monkeypatch.setattr(parquet_lib, "BUFFER_BYTES", 2000)
    read = parquet_lib.storage.Reader.read
    sizes = []

    def noted(self, size=-1):
        data = read(self, size)
        sizes.append(len(data))
        return data

    monkeypatch.setattr(parquet_lib.storage.Reader, "read", noted)
    assert documents(f"parquet:{path}#text") == expected
    _, *pages = sizes  # the first read is the end of the file
    assert max(pages) <= 2**14 and sum(pages) > 2 * 2**14


@pytest.mark.parametrize("invalid_utf8", ["replace", "skip", "error"])
def test_invalid_utf8_is_treated_as_in_other_sources(tmp_path, invalid_utf8):
    column = pyarrow.array([b"One.", b"caf\xe9 au lait", b"Two."]).view("string")
    spec = f"parquet:{write(tmp_path / 'a.parquet', {'text': column})}#text"
    if invalid_utf8 == "error":
        with pytest.raises(
            ConfigError, match="a.parquet:2 is not UTF-8 .0xe9 at byte 4"
        ):
            documents(spec, invalid_utf8=invalid_utf8)
        return
    found = documents(spec, invalid_utf8=invalid_utf8)
    kept = [("caf\ufffd au lait",)] if invalid_utf8 == "replace" else []
    assert found == [("One.",), *kept, ("Two.",)]


@pytest.mark.parametrize(
    ("column", "kind"),
    [
        *((name, "") for name in ("body", "a.body", "text.body", "a")),
        ("id", "int64"),
        ("tags", "list<element: string>"),
        ("views", "list_view<element: string>"),
        ("digest", "fixed_size_binary[1]"),
    ],
)
def test_a_column_that_is_not_text_is_an_error(tmp_path, column, kind):
    columns = {
        "id": [1],
        "text": ["t"],
        "a": [{"title": "t"}],
        "tags": [["t"]],
        "views": pyarrow.array([["t"]], pyarrow.list_view(pyarrow.string())),
        "digest": pyarrow.array([b"t"], pyarrow.binary(1)),
    }
    path = write(tmp_path / "a.parquet", columns)
    problem = f"no column '{column}' of text{f' (it is {kind})' if kind else ''};"
    message = f"a.parquet has {re.escape(problem)} append .* #column: text, a.title$"
    with pytest.raises(ConfigError, match=message):
        documents(f"parquet:{path}#{column}")


@pytest.mark.parametrize("kept", [0, 3, 100, 0.5, -1])
def test_a_truncated_file_is_an_error(tmp_path, kept):
    path = write(tmp_path / "a.parquet", {"text": TEXTS})
    data = path.read_bytes()
    path.write_bytes(data[: int(kept * len(data)) if kept == 0.5 else kept])
    with pytest.raises(ConfigError, match="a.parquet is corrupt or not Parquet .*copy"):
        documents(f"parquet:{path}#text")


def test_a_flipped_bit_in_a_page_with_a_checksum_is_an_error(tmp_path):
    columns = {"text": TEXTS}
    path = write(tmp_path / "a.parquet", columns, write_page_checksum=True)
    flip(path)
    with pytest.raises(ConfigError, match="a.parquet is corrupt or not Parquet"):
        documents(f"parquet:{path}#text")
