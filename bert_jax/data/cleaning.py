"""A document as it was read -> its sentences, cleaned.

Pure and without I/O, so that documents can be cleaned in any process. What is changed
or dropped is counted, and the counts go into the corpus manifest.
"""

import collections
import re
import unicodedata

from bert_jax.config import DataConfig
from bert_jax.data import sentences as splitter
from bert_jax.data.sources import lines
from bert_jax.data.sources.document import Document

# Controls (Cc) but tab, and the byte order mark where files were joined: neither letter
# nor space. google-research/bert tokenization.py drops them as well.
_CONTROL = re.compile("[\x00-\x08\x0a-\x1f\x7f-\x9f\ufeff]")


def sentences(
    document: Document, data_config: DataConfig, counts: collections.Counter[str]
) -> list[str]:
    """Returns the sentences of a document, stripped, none empty.

    Control characters are dropped, characters are composed (Unicode NFC), a line over
    max_line_bytes is cut, and lines that are not sentences yet are split into them.

    Args:
      document: as `sources.documents` gives it.
      data_config: its max_line_bytes holds.
      counts: counted up by "control_characters_dropped", "lines_composed",
        "lines_cut" and "documents_empty".
    """
    found: list[str] = []
    for line in document.lines:
        for part in _clean(line, data_config.max_line_bytes, counts):
            if document.is_split:
                found.append(part.strip())
            else:
                found += splitter.split(part)
    found = [sentence for sentence in found if sentence]
    if not found:
        counts["documents_empty"] += 1
    return found


def _clean(line: str, max_bytes: int, counts: collections.Counter[str]) -> list[str]:
    # Printable text has no control character, and most lines are printable.
    if not line.isprintable() and _CONTROL.search(line):
        line = line.replace("\x1f", " ")  # the unit separator stands between words
        line, num_dropped = _CONTROL.subn("", line)
        counts["control_characters_dropped"] += num_dropped
    if not line.isascii() and not unicodedata.is_normalized("NFC", line):
        line = unicodedata.normalize("NFC", line)
        counts["lines_composed"] += 1
    if len(line) * 4 <= max_bytes:  # a character of UTF-8 has up to four bytes
        return [line]
    parts = lines.cut(line, max_bytes)
    if len(parts) > 1:
        counts["lines_cut"] += 1
    return parts
