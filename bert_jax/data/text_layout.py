"""How a plain text file is laid out: where its documents end, what a line is."""

import itertools
import re
from collections.abc import Iterable, Iterator

from bert_jax.data import sentences

SAMPLE_LINES = 2000
SAMPLE_BYTES = 2**20
# Lines of the sample that are split into sentences: enough to tell nine in ten.
SPLIT_LINES = 200

_HEADING = re.compile(r"(#{1,6}\s+\S.*|\s*=\s+[^=\s](.*[^=\s])?\s+=\s*)$")
# WikiText's subheadings and Markdown's rules.
_ORNAMENT = re.compile(r"\s*((=\s+){2,}.*=|[-*_](\s*[-*_]){2,})\s*$")

# Lines of a file, None after the last line of a document.
Stream = Iterator[str | None]


def documents_of(source_lines: Iterator[str]) -> tuple[Stream, bool]:
    """Tells how a text file is laid out, from its first 2,000 lines or mebibyte.

    1. Its lines are broken at a width (see `_is_wrapped`): they are joined first, up
       to the next blank line.
    2. It has headings (Markdown `# ...`, or `= Title =` as in WikiText): running text,
       a document under each heading; blank lines only separate paragraphs.
    3. At least nine in ten of its lines hold one sentence, and blank lines stand
       between groups of several: a sentence a line, a blank line between documents.
    4. Every group between blank lines is a single line: running text, a paragraph a
       line with blank lines between; the file is one document.
    5. Otherwise: running text, a blank line between documents, a paragraph a line.

    Returns:
      The stream of lines with the ends of documents, and whether they are sentences.
    """
    sample, rest = _sampled(source_lines)
    if _is_wrapped(sample):
        sample, rest = _sampled(_unwrapped(rest))
    if any(map(_HEADING.match, sample)):
        return _under_headings(rest), False
    if not _has_groups(sample):
        return rest, False
    return _between_blank_lines(rest), _is_sentence_a_line(sample)


def one_document(source_lines: Iterator[str]) -> Stream:
    """Returns the lines of a file that is one document: joined, without headings."""
    sample, rest = _sampled(source_lines)
    return _without_headings(_unwrapped(rest) if _is_wrapped(sample) else rest)


def _sampled(source_lines: Iterator[str]) -> tuple[list[str], Iterator[str]]:
    """Returns the first lines, and all of them."""
    sample: list[str] = []
    size = 0
    for line in itertools.islice(source_lines, SAMPLE_LINES):
        sample.append(line)
        size += len(line)
        if size > SAMPLE_BYTES:
            break
    return sample, itertools.chain(sample, source_lines)


def _under_headings(source_lines: Iterable[str]) -> Stream:
    has_text = False
    for line in source_lines:
        if _HEADING.match(line):
            if has_text:
                yield None
            has_text = False
        elif line.strip() and not _ORNAMENT.match(line):
            has_text = True
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


def _without_headings(source_lines: Iterable[str]) -> Stream:
    return (
        line
        for line in source_lines
        if not _HEADING.match(line) and not _ORNAMENT.match(line)
    )


def _is_wrapped(sample: list[str]) -> bool:
    """Returns whether the lines of a file are broken at a width, inside sentences.

    Then nearly every line that another follows has no room for its first word, and
    most do not end at a stop. Poems and lists leave room.
    """
    inner = [
        (line, following.split(maxsplit=1)[0])
        for line, following in itertools.pairwise(map(str.rstrip, sample))
        if line and following
    ]
    # 95 in 100 lines are no wider; nobody wraps text below 40 or above 100 columns.
    widths = sorted(len(line) for line in sample if line.strip())
    width = widths[len(widths) * 95 // 100] if inner else 0
    if not 40 <= width <= 100:
        return False
    is_full = [len(line) + 1 + len(word) > width - 8 for line, word in inner]
    is_open = [line[-1].isalnum() or line[-1] in ",;-" for line, _ in inner]
    return sum(is_full) >= 0.8 * len(inner) and sum(is_open) >= 0.5 * len(inner)


def _unwrapped(source_lines: Iterable[str]) -> Iterator[str]:
    """Yields the paragraphs of wrapped lines, headings apart, blank lines between."""
    paragraph: list[str] = []
    size = 0
    for line in itertools.chain(source_lines, [""]):
        is_text = bool(line.strip()) and not _HEADING.match(line)
        if paragraph and (not is_text or size > SAMPLE_BYTES):
            yield " ".join(paragraph)
            yield ""
            paragraph, size = [], 0
        if is_text:
            paragraph.append(line.strip())
            size += len(line)
        else:
            yield line


def _has_groups(sample: list[str]) -> bool:
    """Returns whether any two lines stand together."""
    filled = [bool(line.strip()) for line in sample]
    return any(a and b for a, b in itertools.pairwise(filled))


def _is_sentence_a_line(sample: list[str]) -> bool:
    filled = [line for line in sample if line.strip()][:SPLIT_LINES]
    single = sum(len(sentences.split(line)) == 1 for line in filled)
    return single >= 0.9 * len(filled)
