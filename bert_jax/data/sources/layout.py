"""Detects the layout of a plain text file: document boundaries and sentence lines.

unwrap.py joins the hard-wrapped lines of each document afterwards.
"""

import itertools
from collections.abc import Iterable, Iterator

from bert_jax.data.sources import sentences, unwrap
from bert_jax.data.sources.unwrap import HEADING, ORNAMENT, Stream

SAMPLE_LINES = 2000
SAMPLE_CHARS = 2**20
# The number of sampled lines that are split into sentences; enough to estimate whether
# nine in ten lines hold one sentence.
SPLIT_LINES = 200


def documents_of(source_lines: Iterator[str]) -> tuple[Stream, bool]:
    """Detects the layout of a text file and marks the ends of its documents.

    The layout is detected from the first 2,000 lines or 2**20 characters. The first
    rule that applies is used:

    1. There are headings (Markdown `# ...`, or `= Title =` as in WikiText): each
       heading starts a document of running text; blank lines separate paragraphs.
    2. Most lines are wrapped (see `unwrap.find_wrapping`), or every line is between
       blank lines: the file is one document; blank lines separate paragraphs.
    3. At least nine in ten lines hold one sentence: each line is a sentence; blank
       lines separate documents.
    4. Otherwise each line is a paragraph; blank lines separate documents.

    Returns:
      The lines, with None after the last line of each document, and whether each line
      is a sentence.
    """
    sample, rest = _sampled(source_lines)
    if any(map(HEADING.match, sample)):
        return _under_headings(rest), False
    if unwrap.find_wrapping(sample) or not _has_groups(sample):
        return rest, False
    return _between_blank_lines(rest), _has_one_sentence_per_line(sample)


def one_document(source_lines: Iterator[str]) -> Stream:
    """Yields the lines of a file that is one document; headings become blank lines."""
    for line in source_lines:
        yield "" if HEADING.match(line) or ORNAMENT.match(line) else line


def _sampled(source_lines: Iterator[str]) -> tuple[list[str], Iterator[str]]:
    """Returns the first lines as a list, and an iterator over all lines."""
    sample: list[str] = []
    size = 0
    for line in itertools.islice(source_lines, SAMPLE_LINES):
        sample.append(line)
        size += len(line)
        if size > SAMPLE_CHARS:
            break
    return sample, itertools.chain(sample, source_lines)


def _under_headings(source_lines: Iterable[str]) -> Stream:
    has_text = False
    for line in source_lines:
        if HEADING.match(line):
            if has_text:
                yield None
            has_text = False
        elif ORNAMENT.match(line):
            yield ""
        else:
            has_text = has_text or bool(line.strip())
            yield line


def _between_blank_lines(source_lines: Iterable[str]) -> Stream:
    has_text = False
    for line in source_lines:
        if line.strip():
            has_text = True
            yield line
        elif has_text:
            has_text = False
            yield None


def _has_groups(sample: list[str]) -> bool:
    filled = [bool(line.strip()) for line in sample]
    return any(a and b for a, b in itertools.pairwise(filled))


def _has_one_sentence_per_line(sample: list[str]) -> bool:
    filled = [line for line in sample if line.strip()][:SPLIT_LINES]
    single = sum(len(sentences.split(line)) == 1 for line in filled)
    return single >= 0.9 * len(filled)
