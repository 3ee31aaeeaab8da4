"""Splits running text into sentences."""

import re

# Sentence-final punctuation ("stops"): Latin, Arabic, Urdu, Indic, Armenian, Ethiopic,
# Burmese and Khmer.
STOPS = ".!?\u061f\u06d4\u0964\u0965\u0589\u1362\u104b\u17d4"
# Chinese and Japanese, including full and half width; no white space follows them.
CJK_STOPS = "\u3002\uff0e\uff61\uff01\uff1f"
_CLOSERS = "\"'\u201d\u2019\u00bb)\\]\u300d\u300f\u300b\u3011\uff09"
_OPENERS = "\"'\u201c\u2018\u00ab(\\["


def _ends(stops: str, cjk_stops: str = "") -> re.Pattern[str]:
    """Compiles the pattern of a sentence end.

    It matches a run of stops, closing quotes or brackets, and white space, and captures
    the first character after them. The pattern starts with a character set, for which
    `re` searches several times faster than for anything else. Only the first stop of a
    run can start a match, which keeps the time linear.
    """
    any_stop = f"[{stops}{cjk_stops}]"
    run = rf"{any_stop}(?<!{any_stop}{any_stop}){any_stop}*+"
    end = rf"[{_CLOSERS}]*+\s++(?=[{_OPENERS}]*(\S))"
    if cjk_stops:
        end = rf"(?:(?<=[{cjk_stops}])[{_CLOSERS}]*+\s*+(?=(\S))|{end})"
    return re.compile(run + end)


_ASCII_END = _ends(".!?")
_END = _ends(STOPS, CJK_STOPS)
# Characters that never start a sentence, besides lower-case letters.
_INSIDE = frozenset(".,;:!?)]}%\u2026")
_LAST_WORD = re.compile(r"[\w.]*$")
_NEXT_WORD = re.compile(rf"[{_OPENERS}]*+(\w*)")
_INITIALS = re.compile(r"(?:[^\W\d_]\.)+[^\W\d_]")

# Lower case, without the last full stop. ABBREVIATIONS never end a sentence.
# FINAL_ABBREVIATIONS end one if a word of STARTERS follows. NUMBERED_ABBREVIATIONS are
# common words unless a number follows.
ABBREVIATIONS = frozenset(
    """approx ca cap capt cf ch col dr e.g eg eds figs gen gov hon i.e ie lieut lt maj
    messrs mlle mme mr mrs ms mt nos pp prof rep rev sec sen sgt st trans viz vol vols
    vs""".split()
)
FINAL_ABBREVIATIONS = frozenset(
    """al apr aug ave bros co corp dec dept ed esp esq est etc feb fri inc jan jr ltd
    mon mus nov oct op ph.d pt sept sr thu thur thurs tue tues univ
    """.split()
)
NUMBERED_ABBREVIATIONS = frozenset("art fig lat mar no p sat sun wed".split())
# Words that often start a sentence. "I" and "A" are not included, because they are also
# initials.
STARTERS = frozenset(
    """After Although And As At But During For From Had He Her His However If In It Its
    My No Not On Our She Since So That The Their Then There These They This Those Though
    To Was We What When Where While Who With Yet You
    """.split()
)


def split(text: str) -> list[str]:
    """Splits a paragraph into sentences, stripped and non-empty.

    A sentence ends at a stop that is followed by white space and then by a character
    other than a lower-case letter or punctuation, unless the stop belongs to an
    abbreviation, an initial or a list number. Chinese and Japanese stops need no white
    space.
    """
    sentences, start = [], 0
    pattern = _ASCII_END if text.isascii() else _END
    for match in pattern.finditer(text):
        following = match[match.lastindex or 0]
        if following.islower() or following in _INSIDE:
            continue
        stop = match.start()
        # A single full stop, directly before white space.
        is_full_stop = text[stop] == "." and text[stop + 1].isspace()
        if is_full_stop and _is_abbreviated(text, start, match):
            continue
        sentences.append(text[start : match.end()].strip())
        start = match.end()
    sentences.append(text[start:].strip())
    return [sentence for sentence in sentences if sentence]


def _is_abbreviated(text: str, start: int, match: re.Match[str]) -> bool:
    stop = match.start()
    # Abbreviations are short; searching a slice keeps the time linear.
    match_of_word = _LAST_WORD.search(text[max(start, stop - 16) : stop])
    word = match_of_word.group() if match_of_word else ""
    if word.isdigit():  # a number with no text before it is a list number
        return not text[start : stop - len(word)].strip()
    lower = word.lower()
    if lower in ABBREVIATIONS:
        return True
    is_letter = len(word) == 1 and word.isupper()
    # "I" ends sentences more often than it abbreviates a name.
    is_initials = word != "I" and (is_letter or _INITIALS.fullmatch(word) is not None)
    if lower in NUMBERED_ABBREVIATIONS and not is_initials:
        return text[match.end()].isdigit()
    if lower in FINAL_ABBREVIATIONS or is_initials:
        after = _NEXT_WORD.match(text, match.end())
        return not after or after[1] not in STARTERS
    return False
