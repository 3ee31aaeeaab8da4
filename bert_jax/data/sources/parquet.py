"""Reads documents from a text column of Parquet files, row group by row group."""

import contextlib
from collections.abc import Iterator
from typing import Any

from bert_jax import storage
from bert_jax.data.sources import lines
from bert_jax.data.sources.kind import DivisibleSource, InputFile, ranges
from bert_jax.errors import ConfigError

# Rows decoded at a time: few enough that long documents fit into memory.
BATCH_ROWS = 256
# A row group is read in pieces of this size, because it can be as large as its file.
BUFFER_BYTES = 2**22


class Parquet(DivisibleSource):
    """Parquet files: one document per row, in a column; a null is an empty document.

    A dotted path names a field of a struct. Without #column, it is the column "text" or
    the only one of text.
    """

    name = "parquet"
    form = "parquet:GLOB[#column]"
    has_field = True
    is_line_based = False

    def parts(self, file: InputFile, max_bytes: int) -> Iterator[lines.Part]:
        """Yields ranges of row groups, by the size of the text before compression.

        Raises:
          ConfigError: when the file is not Parquet or corrupt, or when the column does
            not exist or is not text.
        """
        with _opened(file.path, self.field) as (opened, names):
            schema, metadata = opened.schema, opened.metadata
            paths = [schema.column(i).path for i in range(metadata.num_columns)]
            index = paths.index(".".join(names))
            sizes = [
                metadata.row_group(i).column(index).total_uncompressed_size
                for i in range(metadata.num_row_groups)
            ]
        yield from ranges(sizes, max_bytes)

    def stream(self, path, part, data_config, counts):
        for number, data in _values(path, self.field, part):
            if data is not None:
                text = data.decode("utf-8", "surrogateescape")
                where = f"{path}:{number}"
                text = lines.repair(text, where, data_config.invalid_utf8, counts)
                yield from text.splitlines()
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
                values = batch.column(0)
                for name in names[1:]:
                    values = _field(values, name)
                yield from enumerate(_as_binary(values).to_pylist(), start=number + 1)
                number += len(values)


@contextlib.contextmanager
def _opened(path: str, column: str) -> Iterator[tuple[Any, list[str]]]:
    """Opens a file, and yields it with the names from the column to the text."""
    import pyarrow
    from pyarrow import parquet

    try:
        with storage.Reader(path) as raw:
            # Checks the checksums of pages, which only some writers add.
            file = parquet.ParquetFile(
                raw,
                page_checksum_verification=True,
                buffer_size=BUFFER_BYTES,
                pre_buffer=False,  # it reads a whole row group
            )
            yield file, _path_in_schema(file.schema_arrow, column, path)
    except (pyarrow.ArrowInvalid, OSError) as error:
        if isinstance(error, OSError) and error.strerror:
            raise ConfigError(
                f"{path} cannot be read ({error.strerror}); check its path"
                " and permissions"
            ) from None
        raise ConfigError(
            f"{path} is corrupt or not Parquet ({_first_line(error)}); copy the file"
            " again"
        ) from None


def _field(values: Any, name: str) -> Any:
    """Returns a field of a struct column, null where the struct is null."""
    return values.flatten()[values.type.get_field_index(name)]


def _as_binary(values: Any) -> Any:
    """Returns text as bytes, because a writer may not have validated its UTF-8."""
    import pyarrow

    if isinstance(values, pyarrow.ExtensionArray):
        values = values.storage
    if pyarrow.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    return values.cast(pyarrow.large_binary())


def _path_in_schema(schema: Any, column: str, path: str) -> list[str]:
    """Returns the names from the top-level column to the text.

    Raises:
      ConfigError: when the column does not exist or is not text. The message lists the
        text columns.
    """
    if not column:
        column = _default_column(schema, path)
    names = [column] if column in schema.names else column.split(".")
    fields: Any = {field.name: field for field in schema}
    kind = None
    for name in names:
        if name not in fields:
            raise ConfigError(_problem(path, column, "does not exist", schema))
        kind = fields[name].type
        fields = {field.name: field for field in kind} if _is_struct(kind) else {}
    if not (_is_text(kind) or _is_binary(kind)):
        raise ConfigError(_problem(path, column, f"is {kind}, not text", schema))
    return names


def _default_column(schema: Any, path: str) -> str:
    texts = _text_columns(schema)
    if "text" in texts or len(texts) == 1:
        return "text" if "text" in texts else texts[0]
    raise ConfigError(
        f"config.data.sources: the text columns of {path} are"
        f" {', '.join(texts) or 'none'}; append one to the source, as in #column"
    )


def _problem(path: str, column: str, problem: str, schema: Any) -> str:
    texts = ", ".join(_text_columns(schema)) or "none"
    return (
        f"config.data.sources: column {column!r} of {path} {problem}; use one of its"
        f" text columns: {texts}"
    )


def _text_columns(fields: Any, prefix: str = "") -> list[str]:
    """Returns the dotted paths of all columns of text."""
    found = []
    for field in fields:
        if _is_struct(field.type):
            found += _text_columns(field.type, f"{prefix}{field.name}.")
        elif _is_text(field.type):
            found.append(prefix + field.name)
    return found


def _is_struct(kind: Any) -> bool:
    import pyarrow

    return pyarrow.types.is_struct(kind)


def _is_text(kind: Any) -> bool:
    return _stored(kind) in ("string", "large_string", "string_view")


def _is_binary(kind: Any) -> bool:
    """Returns whether a type is that of text by writers that do not mark it as text."""
    return _stored(kind) in ("binary", "large_binary", "binary_view")


def _stored(kind: Any) -> str:
    """Returns the type of values, also of a dictionary or an extension type."""
    import pyarrow

    if isinstance(kind, pyarrow.BaseExtensionType):
        kind = kind.storage_type
    return str(kind.value_type if pyarrow.types.is_dictionary(kind) else kind)


def _first_line(error: BaseException) -> str:
    return str(error).split("\n", 1)[0].rstrip(".")
