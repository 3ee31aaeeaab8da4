"""The Document class, and the assembly of documents from a stream of lines."""

import collections
import dataclasses
from collections.abc import Iterator

from bert_jax.config import DataConfig
from bert_jax.data.sources import lines, unwrap
from bert_jax.data.sources.unwrap import Stream


@dataclasses.dataclass(frozen=True, slots=True)
class Document:
    """A document as it was read, before cleaning and sentence splitting."""

    lines: tuple[str, ...]  # non-blank, without line ends
    is_split: bool  # each line is a sentence; otherwise each line is a paragraph
    origin: str  # file or dataset, and the number of the document in it

    @property
    def num_bytes(self) -> int:
        """Returns the size of the text in UTF-8, counting one byte per line end."""
        return sum(len(line.encode(errors="replace")) + 1 for line in self.lines)


def assemble(
    stream: Stream,
    name: str,
    data_config: DataConfig,
    counts: collections.Counter[str],
    *,
    is_split: bool = False,
) -> Iterator[Document]:
    """Yields the documents in a stream of lines.

    Hard-wrapped lines are joined first, unless the lines are sentences. A document
    over max_document_bytes is yielded in parts.

    Args:
      name: file or dataset, for `Document.origin`.
      data_config: its max_document_bytes is used.
      counts: "documents_cut" and "documents_unwrapped" are incremented.
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
