"""Joins hard-wrapped lines, as in Project Gutenberg books, into paragraphs.

A document is wrapped if its lines end inside sentences at a common width. In a wrapped
document the line breaks after short lines are kept: those of verse, tables, lists and
headings, and those at the ends of paragraphs.
"""

import collections
import dataclasses
import itertools
import re
from collections.abc import Iterator

from bert_jax.data.sources import sentences

# Lines, with None after the last line of each document.
Stream = Iterator[str | None]

HEADING = re.compile(r"(#{1,6}\s+\S.*|\s*=\s+[^=\s](.*[^=\s])?\s+=\s*)$")
# WikiText subheadings and Markdown horizontal rules.
ORNAMENT = re.compile(r"\s*((=\s+){2}.*=|[-*_](\s*[-*_]){2,})\s*$")

# A document is examined in parts. A part ends at the first blank line after this many
# lines or characters, or at twice as many if there is no blank line.
PART_LINES = 2000
PART_CHARS = 2**20

# In columns. Text is rarely wrapped outside this range; verse and code are narrower.
MIN_WIDTH, MAX_WIDTH = 40, 100
# The number of columns that lines wrapped by hand or by an editor leave unused.
SLACK = 4
# Longer words, such as URLs and code, never fit on a line. They count as this long,
# because a break before them is no evidence of a width.
MAX_WORD = 20
# The minimum number of breaks inside sentences, unless nearly all breaks fit the width
# exactly. Two lines must be wider than most verse.
MIN_BREAKS = 3
MIN_EXACT, MIN_SHARE_EXACT = 0.9, 0.2
MIN_WIDTH_OF_TWO = 55
# The minimum share of breaks that are inside a sentence and fit the width. In 17 books
# of Project Gutenberg the share is 0.41 to 0.97 for prose that contains verse, 0.05 to
# 0.38 for indexes and glossaries, and 0 to 0.05 for verse, or 0.33 for verse whose
# lines run over two lines.
MIN_SHARE = 0.4
# If no line starts with a capital (other scripts, lower-cased text), only the widths
# distinguish verse and lists from prose.
MIN_SHARE_WITHOUT_CAPITALS = 0.8
MIN_CAPITALS = 0.02

# Chinese and Japanese characters; these scripts have no spaces between words.
_CJK = (
    "\u2e80-\u30ff\u3100-\u312f\u31a0-\u9fff\uf900-\ufaff\ufe30-\ufe4f\uff01-\uff60"
    "\U00020000-\U0003ffff"
)
_CJK_CHARACTER = re.compile(f"[{_CJK}]")
# Characters that are two columns wide: the above, and Hangul.
_WIDE = re.compile(f"[{_CJK}\u1100-\u115f\uac00-\ud7a3]")

_STOPS = frozenset(sentences.STOPS + sentences.CJK_STOPS + ":\uff1a\u2026")
_CLOSERS = "\"'\u201d\u2019\u00bb)]_*\u300d\u300f\u300b\u3011\uff09"
_OPENERS = "\"'\u201c\u2018\u00ab([_*-\u2014\u300c\u300e\u300a\uff08 \t\u3000"
# Digits and wide punctuation start lines in both prose and verse.
_NEUTRAL = re.compile("[\\d\u3000-\u303f\uff01-\uff60]")
_TABLE_ROW = re.compile(r"\S(\t| {3,})\S|\|.*\||(\. ?){6}")
_BULLET = re.compile(r"[*+>\u2022\u00b7\u2023]\s")
# The start of a list item or of speech, unless the line before ends inside a sentence.
_ITEM = re.compile(r"\(?\d{1,3}[.)]\s|\(\w\)\s|[-\u2013\u2014]")


@dataclasses.dataclass(frozen=True, slots=True)
class Wrapping:
    """The width and style at which a text is wrapped."""

    width: int  # of a full line, in columns or characters
    in_columns: bool  # wide characters count as two
    is_cjk: bool  # most of the text is Chinese or Japanese
    indent: int  # the most common one, in characters

    def is_full(self, line: str, following: str) -> bool:
        """Returns whether a line has no room for the first word of the next line."""
        used = _length(line, self.in_columns)
        most = used + _word_length(following, self.in_columns)
        return used - SLACK <= self.width <= most + SLACK


def unwrapped(stream: Stream, counts: collections.Counter[str]) -> Stream:
    """Joins the hard-wrapped lines in a stream of documents.

    Each document is examined separately, in parts. A part without evidence of a width
    has the width of the part before it. Memory is bounded by PART_LINES and PART_CHARS.

    Blank lines end paragraphs. Increments "documents_unwrapped".
    """
    wrapping: Wrapping | None = None
    for part, is_last in _parts(stream):
        of_part = find_wrapping(part)
        if of_part and not wrapping:
            counts["documents_unwrapped"] += 1
        wrapping = of_part or wrapping
        yield from _paragraphs(part, wrapping) if wrapping else part
        if is_last:
            yield None
            wrapping = None


def _parts(stream: Stream) -> Iterator[tuple[list[str], bool]]:
    """Yields the parts of each document, and whether a part is its last."""
    part: list[str] = []
    num_chars = 0
    for line in stream:
        if line is None:
            yield part, True
            part, num_chars = [], 0
            continue
        part.append(line)
        num_chars += len(line)
        is_full = len(part) >= PART_LINES or num_chars >= PART_CHARS
        if is_full and (
            not line.strip()
            or len(part) >= 2 * PART_LINES
            or num_chars >= 2 * PART_CHARS
        ):
            yield part, False
            part, num_chars = [], 0
    if part:
        yield part, False


# ------------------------------------------------------------------- finding the width


def find_wrapping(lines: list[str]) -> Wrapping | None:
    """Returns the wrapping of lines, or None if they are not wrapped.

    A break after a line of length n and before a word of length m is explained by the
    widths from n to n + m. Lines are wrapped if one width explains enough of the breaks
    that are certainly inside sentences or, if there are few lines, nearly all breaks
    without slack. No width explains the break after a line over MAX_WIDTH.
    """
    num_breaks = num_neutral = num_capitals = 0
    breaks: list[tuple[str, str]] = []
    inside: list[tuple[str, str]] = []
    for line, following in _breaks(lines):
        num_breaks += 1
        if len(line) > MAX_WIDTH:
            continue
        initial = following.lstrip(_OPENERS)[:1]
        num_neutral += bool(_NEUTRAL.match(initial))
        num_capitals += initial.isupper()
        if _is_row(line) or _BULLET.match(following.lstrip()):
            continue
        breaks.append((line, following))
        if initial.isalpha() and not initial.isupper() and not _is_closed(line):
            inside.append((line, following))
    has_capitals = num_capitals > MIN_CAPITALS * num_breaks
    share = MIN_SHARE if has_capitals else MIN_SHARE_WITHOUT_CAPITALS
    needed = max(MIN_BREAKS, share * (num_breaks - num_neutral))
    if len(inside) >= needed:
        wrapping, votes = _best(inside, SLACK)
        if votes >= needed:
            return wrapping
    if inside and len(inside) >= MIN_SHARE_EXACT * num_breaks:
        wrapping, votes = _best(breaks, slack=0)
        is_wide = num_breaks > 1 or wrapping.width >= MIN_WIDTH_OF_TWO
        if is_wide and votes >= MIN_EXACT * num_breaks:
            return wrapping
    return None


def _breaks(lines: list[str]) -> Iterator[tuple[str, str]]:
    """Yields consecutive lines that neither a blank line nor an indent separates.

    A line over MAX_WIDTH is always yielded, with "" if no line follows it.
    """
    stripped = [line.rstrip() for line in lines]
    for line, following in itertools.pairwise([*stripped, ""]):
        if len(line) > MAX_WIDTH or (
            line and following and not _ends_paragraph(line, following)
        ):
            yield line, following


def _ends_paragraph(line: str, following: str) -> bool:
    return following[0].isspace() and line[-1] not in ":\uff1a" and _is_closed(line)


def _best(breaks: list[tuple[str, str]], slack: int) -> tuple[Wrapping, int]:
    """Returns the wrapping that explains the most breaks, and their number."""
    text = "".join(line for line, _ in breaks)
    is_cjk = len(_CJK_CHARACTER.findall(text)) > len(text) / 2
    measures = (False, True) if _WIDE.search(text) else (False,)
    votes, width, in_columns = max(
        (*_most_votes(breaks, in_columns, is_cjk, slack), in_columns)
        for in_columns in measures
    )
    indents = collections.Counter(_indent(following) for _, following in breaks)
    indent = indents.most_common(1)[0][0]
    return Wrapping(width, in_columns, is_cjk, indent), votes


def _most_votes(
    breaks: list[tuple[str, str]], in_columns: bool, is_cjk: bool, slack: int
) -> tuple[int, int]:
    """Returns the most breaks that a width explains, and the smallest such width."""
    changes: collections.Counter[int] = collections.Counter()
    for line, following in breaks:
        length = _length(line, in_columns)
        changes[length] += 1
        changes[length + _word_length(following, in_columns) + slack + 1] -= 1
    narrowest = MIN_WIDTH // 2 if is_cjk and not in_columns else MIN_WIDTH
    best, votes = (0, narrowest), 0
    for width in range(min(changes), MAX_WIDTH + 1):
        votes += changes[width]
        if width >= narrowest and votes > best[0]:
            best = votes, width
    return best


def _length(line: str, in_columns: bool) -> int:
    if not in_columns or line.isascii():
        return len(line)
    return len(line) + len(_WIDE.findall(line))


def _word_length(line: str, in_columns: bool) -> int:
    """Returns the length of the first word of a line plus a space."""
    line = line.lstrip()
    if not line.isascii() and _CJK_CHARACTER.match(line):
        return 1 + in_columns  # a line can start with any character
    return 1 + _length(line.split(" ", 1)[0][:MAX_WORD], in_columns)


# ------------------------------------------------------------------------ joining lines


def _paragraphs(lines: list[str], wrapping: Wrapping) -> Iterator[str]:
    """Yields the paragraphs of a wrapped text, each joined into one line."""
    paragraph: list[str] = []
    last = ""  # the last line of the paragraph; "" after a line that is never joined
    for line in map(str.rstrip, lines):
        text = line.lstrip()
        is_alone = _is_alone(line, text)
        if last and not is_alone and _continues(last, line, wrapping):
            paragraph += [_separator(last, text, wrapping.is_cjk), text]
        else:
            if paragraph:
                yield "".join(paragraph)
            paragraph = [text]
        last = "" if is_alone else line
    if paragraph:
        yield "".join(paragraph)


def _is_alone(line: str, text: str) -> bool:
    """Returns whether a line is never joined: blank, heading, rule or table row."""
    if not text or _is_row(line):
        return True
    if text[0] not in "#=-*_":
        return False
    return bool(HEADING.match(line) or ORNAMENT.match(line))


def _continues(line: str, following: str, wrapping: Wrapping) -> bool:
    """Returns whether the following line continues the paragraph."""
    text = following.lstrip()
    if _BULLET.match(text):
        return False
    if _is_closed(line):
        is_start = _indent(following) > wrapping.indent or _ITEM.match(text)
        return not is_start and wrapping.is_full(line, following)
    # Inside a sentence a line may be shorter: in a quotation, or if wrapped by hand.
    is_wide = _length(line, wrapping.in_columns) >= wrapping.width / 2
    if is_wide and text.lstrip(_OPENERS)[:1].islower():
        return True
    return wrapping.is_full(line, following)


def _separator(line: str, text: str, is_cjk: bool) -> str:
    """Returns the separator for joining two lines: a space or nothing."""
    last, first = line[-1], text[0]
    if not (last.isascii() and first.isascii()):
        wide = [bool(_CJK_CHARACTER.match(character)) for character in (last, first)]
        if all(wide) or (is_cjk and any(wide)):
            return ""
    if last in "-\u2010\u2014":  # a hyphenated word continues on the next line
        return " " if line[-2:-1].isspace() or not first.isalnum() else ""
    is_dash = text.startswith("--") and text[2:3].strip()
    return "" if is_dash and (last.isalnum() or last in ",;") else " "


# ------------------------------------------------------------------------------- lines


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _is_closed(line: str) -> bool:
    """Returns whether a line ends with a stop or colon, ignoring closing quotes."""
    return line.rstrip(_CLOSERS)[-1:] in _STOPS


def _is_row(line: str) -> bool:
    """Returns whether a line has table columns or dot leaders."""
    text = line.lstrip()
    # The regular expression is slow, and most lines contain none of these strings.
    if not (
        "   " in text or "\t" in text or "|" in text or "..." in text or ". ." in text
    ):
        return False
    return bool(_TABLE_ROW.search(text))
