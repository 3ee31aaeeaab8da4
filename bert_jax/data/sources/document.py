"""Documents, and their assembly from lines."""

import collections
import dataclasses
from collections.abc import Iterator

from bert_jax.config import DataConfig
from bert_jax.data.sources import layout, lines, sources, unwrap
from bert_jax.data.sources.unwrap import Stream


@dataclasses.dataclass(frozen=True, slots=True)
class Document:
    lines: tuple[str, ...]  # without line ends; none blank
    is_split: bool  # whether the lines are sentences; else they are paragraphs
    origin: str  # file or dataset, and the number of the document in it

    @property
    def num_bytes(self) -> int:
        """Returns the bytes of the text in UTF-8, and one a line."""
        return sum(len(line.encode(errors="replace")) + 1 for line in self.lines)


def _assemble(
    stream: Stream,
    name: str,
    data_config: DataConfig,
    counts: collections.Counter[str],
    *,
    is_split: bool = False,
) -> Iterator[Document]:
    """Yields the documents of a stream of lines, long ones in parts.

    Hard-wrapped lines are joined first, unless the lines are sentences.
    """
    if not is_split:
        stream = unwrap.unwrapped(stream, counts)
    found: list[str] = []
    ordinal, size = 1, 0
    for line in stream:
        if line is None:
            yield Document(tuple(found), is_split, f"{name}, document {ordinal}")
            found, size, ordinal = [], 0, ordinal + 1
        elif line and not line.isspace():
            num_bytes = lines.num_bytes(line) + 1
            if found and size + num_bytes > data_config.max_document_bytes:
                counts["documents_cut"] += 1
                yield Document(tuple(found), is_split, f"{name}, document {ordinal}")
                found, size = [], 0
            found.append(line)
            size += num_bytes
    if found:
        yield Document(tuple(found), is_split, f"{name}, document {ordinal}")


def _text(
    path: str, _: str, data_config: DataConfig, counts: collections.Counter[str]
) -> Iterator[Document]:
    stream, is_split = layout.documents_of(
        sources._plain_lines(path, data_config, counts)
    )
    yield from _assemble(stream, path, data_config, counts, is_split=is_split)
