"""Reads documents from a text column of Parquet files, row group by row group."""

import contextlib
from collections.abc import Iterator
from typing import Any

from bert_jax import storage
from bert_jax.data.sources import lines
from bert_jax.data.sources.kind import FileSource, InputFile, choose_text
from bert_jax.errors import ConfigError

# Rows decoded at a time: few enough that long documents fit into memory.
BATCH_ROWS = 256
# A row group is read in pieces of this size, because it can be as large as its file.
BUFFER_BYTES = 2**22
_TEXT = ("string", "large_string", "string_view")
# The types of text by writers that do not mark it as text, and of other bytes; they
# are read if the column is named, or its name is "text".
_BINARY = ("binary", "large_binary", "binary_view")


class Parquet(FileSource):
    """Parquet files: one document per row, in a column; a null is an empty document.

    A dotted path names a field of a struct. Without #column, it is the column "text" or
    the only one of text.
    """

    name = "parquet"
    form = "parquet:GLOB[#column]"
    has_field = True
    is_line_based = False

    def parts(self, file: InputFile, max_bytes: int) -> Iterator[lines.Part]:
        """Yields ranges of row groups, by the size of the text before compression."""
        with _opened(file.path, self.field) as (opened, names):
            schema, metadata = opened.schema, opened.metadata
            paths = [schema.column(i).path for i in range(metadata.num_columns)]
            index = paths.index(".".join(names))
            start = num_bytes = 0
            for i in range(metadata.num_row_groups):
                size = metadata.row_group(i).column(index).total_uncompressed_size
                if i > start and num_bytes + size > max_bytes:
                    yield start, i
                    start, num_bytes = i, 0
                num_bytes += size
        yield start, metadata.num_row_groups

    def stream(self, path, part, reading):
        for number, value in _values(path, self.field, part):
            if value is not None:
                yield from reading.lines_of(value, f"{path}:{number}")
            yield None


def _values(
    path: str, column: str, part: lines.Part
) -> Iterator[tuple[int, bytes | None]]:
    """Yields (row number, text as stored or None for a null)."""
    with _opened(path, column) as (file, names):
        groups = range(file.num_row_groups)
        number = sum(file.metadata.row_group(i).num_rows for i in groups[: part[0]])
        for group in groups[slice(*part)]:
            batches = file.iter_batches(BATCH_ROWS, [group], columns=[".".join(names)])
            for batch in batches:
                # The name of a column may be the path of a field of a struct.
                values = batch.column(batch.schema.names.index(names[0]))
                for name in names[1:]:  # null where the struct is null
                    values = values.flatten()[values.type.get_field_index(name)]
                yield from enumerate(_as_binary(values).to_pylist(), start=number + 1)
                number += len(values)


@contextlib.contextmanager
def _opened(path: str, column: str) -> Iterator[tuple[Any, tuple[str, ...]]]:
    """Opens a file, and yields it with the names from the column to the text."""
    with opened(path) as file:
        yield file, _path_in_schema(file.schema_arrow, column, path)


@contextlib.contextmanager
def opened(path: str) -> Iterator[Any]:
    """Opens a file; errors of reading it are those of its user."""
    import pyarrow
    from pyarrow import parquet

    try:
        with storage.Reader(path) as raw:
            # Checks the checksums of pages, which only some writers add.
            yield parquet.ParquetFile(
                raw,
                page_checksum_verification=True,
                buffer_size=BUFFER_BYTES,
                pre_buffer=False,  # it reads a whole row group
            )
    except (pyarrow.ArrowInvalid, OSError, UnicodeDecodeError) as error:
        if isinstance(error, OSError) and error.strerror:
            raise lines.unreadable(path, error) from None
        reason = str(error).partition("\n")[0].rstrip(".")
        raise ConfigError(
            f"{path} is corrupt or not Parquet ({reason}); copy the file again,"
            " or, in a clone with Git LFS, run git lfs pull"
        ) from None


def _as_binary(values: Any) -> Any:
    """Returns text as bytes, because a writer may not have validated its UTF-8."""
    import pyarrow

    if isinstance(values, pyarrow.ExtensionArray):
        values = values.storage
    if pyarrow.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    return values.cast(pyarrow.large_binary())


def _path_in_schema(schema: Any, column: str, path: str) -> tuple[str, ...]:
    columns: dict[str, tuple[tuple[str, ...], str]] = {}
    for names, kind in sorted(_columns(schema), key=lambda found: len(found[0])):
        columns.setdefault(".".join(names), (names, kind))  # columns before fields
    texts = [name for name, (_, kind) in columns.items() if kind in _TEXT]
    binary = [name for name, (_, kind) in columns.items() if kind in _BINARY]
    if column in binary or "text" in binary:
        texts, binary = texts + binary, []
    _, kind = columns.get(column, ((), ""))
    return columns[choose_text(texts, column, path, kind, binary)][0]


def _columns(
    fields: Any, prefix: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yields the names and the type of each column that is not a struct."""
    import pyarrow

    for field in fields:
        names = (*prefix, field.name)
        if pyarrow.types.is_struct(field.type):
            yield from _columns(field.type, names)
            continue
        kind = field.type
        if isinstance(kind, pyarrow.BaseExtensionType):
            kind = kind.storage_type
        yield names, str(kind.value_type if pyarrow.types.is_dictionary(kind) else kind)
