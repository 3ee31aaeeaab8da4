"""Joins hard-wrapped lines, as in the books of Project Gutenberg, to paragraphs.

A document is wrapped when its lines end inside sentences at a common width. In a
wrapped document the breaks after short lines stay: those of verse, tables, lists and
headings, and at the ends of paragraphs.
"""

import collections
import dataclasses
import itertools
import re
from collections.abc import Iterator

# Lines, None after the last line of a document.
Stream = Iterator[str | None]

HEADING = re.compile(r"(#{1,6}\s+\S.*|\s*=\s+[^=\s](.*[^=\s])?\s+=\s*)$")
# Subheadings of WikiText and rules of Markdown.
ORNAMENT = re.compile(r"\s*((=\s+){2}.*=|[-*_](\s*[-*_]){2,})\s*$")

# A document is examined in parts of this many lines or characters, which end at a
# blank line; a part without a blank line ends at twice as many.
PART_LINES = 2000
PART_CHARS = 2**20

# In columns. Text is rarely wrapped at other widths; verse and code are narrower.
MIN_WIDTH, MAX_WIDTH = 40, 100
# Lines wrapped by hand or by an editor leave up to this many columns unused.
SLACK = 4
# No line has room for longer words, such as addresses and code: they prove nothing.
MAX_WORD = 20
# Fewer breaks inside sentences prove nothing, unless nearly all breaks have the width
# to the column. Two lines have to be wider than most of verse.
MIN_BREAKS = 3
MIN_EXACT, MIN_SHARE_EXACT = 0.9, 0.2
MIN_WIDTH_OF_TWO = 55
# The share of breaks that are inside a sentence and at the width. In 17 books of
# Project Gutenberg it is 0.41 to 0.97 for prose with verse in it, 0.05 to 0.38 for
# indexes and glossaries, and 0 to 0.05 for verse, or 0.33 with verses over two lines.
MIN_SHARE = 0.4
# Where no line begins with a capital (other scripts, lower-cased text), verse and lists
# differ from prose in their widths only.
MIN_SHARE_WITHOUT_CAPITALS = 0.8
MIN_CAPITALS = 0.02

# Characters of Chinese and Japanese, which have no spaces between words.
_CJK = (
    "\u2e80-\u30ff\u3100-\u312f\u31a0-\u9fff\uf900-\ufaff\ufe30-\ufe4f\uff01-\uff60"
    "\U00020000-\U0003ffff"
)
_CJK_CHARACTER = re.compile(f"[{_CJK}]")
# Two columns wide; with Hangul.
_WIDE = re.compile(f"[{_CJK}\u1100-\u115f\uac00-\ud7a3]")

_STOPS = frozenset(
    ".!?:\u2026\u061f\u06d4\u0964\u0965\u0589\u1362\u104b\u17d4\u3002\uff0e\uff61\uff01"
    "\uff1f\uff1a"
)
_CLOSERS = "\"'\u201d\u2019\u00bb)]_*\u300d\u300f\u300b\u3011\uff09"
_OPENERS = "\"'\u201c\u2018\u00ab([_*-\u2014\u300c\u300e\u300a\uff08 \t\u3000"
# Digits and wide punctuation begin lines of any text.
_NEUTRAL = re.compile("[\\d\u3000-\u303f\uff01-\uff60]")
_TABLE_ROW = re.compile(r"\S(\t| {3,})\S|\|.*\||(\. ?){6}")
_BULLET = re.compile(r"[*+>\u2022\u00b7\u2023]\s")
# An item of a list, or speech, unless it follows the middle of a sentence.
_ITEM = re.compile(r"\(?\d{1,3}[.)]\s|\(\w\)\s|[-\u2013\u2014]")


@dataclasses.dataclass(frozen=True, slots=True)
class Wrapping:
    """How the lines of a text are wrapped.

    Attributes:
      width: of a full line.
      in_columns: whether wide characters count as two, else as one.
      is_cjk: whether most of the text is Chinese or Japanese.
      indent: of most lines.
    """

    width: int
    in_columns: bool
    is_cjk: bool
    indent: int

    def is_full(self, line: str, following: str) -> bool:
        """Returns whether a line has no room for the first word of the next line."""
        used = _length(line, self.in_columns)
        most = used + _word_length(following, self.in_columns)
        return used - SLACK <= self.width <= most + SLACK


def unwrapped(stream: Stream, counts: collections.Counter[str]) -> Stream:
    """Yields a stream of lines with the lines of wrapped documents joined.

    Every document is decided by itself, in parts: a part that proves nothing has the
    width of the part before it. Memory is bounded by PART_LINES and PART_CHARS.

    Args:
      stream: lines and the ends of documents; blank lines end paragraphs.
      counts: counted up by "documents_unwrapped".
    """
    wrapping: Wrapping | None = None
    for part, is_last in _parts(stream):
        found = find_wrapping(part)
        if found and not wrapping:
            counts["documents_unwrapped"] += 1
        wrapping = found or wrapping
        yield from _paragraphs(part, wrapping) if wrapping else part
        if is_last:
            yield None
            wrapping = None


def _parts(stream: Stream) -> Iterator[tuple[list[str], bool]]:
    """Yields lines of one document, and whether the document ends with them."""
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
    """Returns how lines are wrapped, None when they are not.

    A break after a line of length n and before a word of length m is explained by
    widths from n to n + m. Lines are wrapped when one width explains enough of those
    breaks that must be inside sentences, or, if there are few lines, all breaks and
    without any slack. A line over MAX_WIDTH is a break without explanation.
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
    """Yields pairs of lines without a blank line or an indented paragraph between.

    A line over MAX_WIDTH comes in any case, with an empty string if need be.
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
    """Returns the wrapping that explains most breaks, and how many it explains."""
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
    """Returns how many breaks the best width explains, and the smallest such width."""
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
    """Returns the length of a space and the first word of a line."""
    line = line.lstrip()
    if not line.isascii() and _CJK_CHARACTER.match(line):
        return 1 + in_columns  # any character may begin a line
    return 1 + _length(line.split(" ", 1)[0][:MAX_WORD], in_columns)


# ------------------------------------------------------------------------ joining lines


def _paragraphs(lines: list[str], wrapping: Wrapping) -> Iterator[str]:
    """Yields the lines of a wrapped text, joined where they were broken."""
    paragraph: list[str] = []
    last = ""  # of the paragraph; empty after a line that stands alone
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
    """Returns whether a line is blank, a heading, an ornament or of a table."""
    if not text or _is_row(line):
        return True
    if text[0] not in "#=-*_":
        return False
    return bool(HEADING.match(line) or ORNAMENT.match(line))


def _continues(line: str, following: str, wrapping: Wrapping) -> bool:
    """Returns whether the next line belongs to the paragraph of a line."""
    text = following.lstrip()
    if _BULLET.match(text):
        return False
    if _is_closed(line):
        is_start = _indent(following) > wrapping.indent or _ITEM.match(text)
        return not is_start and wrapping.is_full(line, following)
    # Inside sentences lines may be shorter: in quotations, or wrapped by hand.
    is_wide = _length(line, wrapping.in_columns) >= wrapping.width / 2
    if is_wide and text.lstrip(_OPENERS)[:1].islower():
        return True
    return wrapping.is_full(line, following)


def _separator(line: str, text: str, is_cjk: bool) -> str:
    """Returns what stood at a break: a space, or nothing."""
    last, first = line[-1], text[0]
    if not (last.isascii() and first.isascii()):
        wide = [bool(_CJK_CHARACTER.match(character)) for character in (last, first)]
        if all(wide) or (is_cjk and any(wide)):
            return ""
    if last in "-\u2010\u2014":  # at the end of a word, which goes on
        return " " if line[-2:-1].isspace() or not first.isalnum() else ""
    is_dash = text.startswith("--") and text[2:3].strip()
    return "" if is_dash and (last.isalnum() or last in ",;") else " "


# ------------------------------------------------------------------------------- lines


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _is_closed(line: str) -> bool:
    """Returns whether a line ends with a stop or colon, in quotes or not."""
    return line.rstrip(_CLOSERS)[-1:] in _STOPS


def _is_row(line: str) -> bool:
    """Returns whether a line has columns, or dots up to a page number."""
    text = line.lstrip()
    # Most lines have none of these, and the search is slow.
    if not (
        "   " in text or "\t" in text or "|" in text or "..." in text or ". ." in text
    ):
        return False
    return bool(_TABLE_ROW.search(text))
