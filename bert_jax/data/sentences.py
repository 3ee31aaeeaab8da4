"""Splits running text into sentences."""

import re

# A stop, closing quotes or brackets, white space, and something that can begin a
# sentence. CJK stops need no white space after them.
_END = re.compile(
    r"""(?<![.!?\u061f\u0964])[.!?\u061f\u0964]+["'\u201d\u2019\u00bb)\]]*\s+(?=["'\u201c\u2018\u00ab(\[]*(\S))
    |[\u3002\uff01\uff1f]+["'\u201d\u2019\u300d\u300f\uff09]*\s*(?=(\S))""",
    re.VERBOSE,
)
_LAST_WORD = re.compile(r"([\w.]+)\.$")
_LIST_NUMBER = re.compile(r"\s*\d+\.$")

# Lower case, without the last full stop.
ABBREVIATIONS = frozenset(
    """al approx apr art aug ave bros ca cap capt cf ch co col corp dec dept dr ed eds
    e.g eg esp est etc feb fig figs fri gen gov hon i.e ie inc jan jr lieut lt ltd maj
    mar messrs mme mon mr mrs ms mt mus nos nov oct op pp ph.d prof pt pub rep rev sec
    sen sept sgt sr st sun thu thur thurs trans tue tues u.k u.s univ vol vols vs wed
    """.split()
)


def split(text: str) -> list[str]:
    """Returns the sentences of a paragraph, stripped, none empty.

    A sentence ends at a stop followed by white space and anything but a lower-case
    letter, unless the stop belongs to an abbreviation or an initial; Chinese and
    Japanese stops end one wherever they stand.
    """
    sentences, start = [], 0
    for match in _END.finditer(text):
        following = match.group(1) or match.group(2)
        if following.islower() or _goes_on(text, start, match):
            continue
        sentences.append(text[start : match.end()].strip())
        start = match.end()
    sentences.append(text[start:].strip())
    return [sentence for sentence in sentences if sentence]


def _goes_on(text: str, start: int, match: re.Match[str]) -> bool:
    """Returns whether the stop ends an abbreviation, an initial or a list's number."""
    if match.group().rstrip() != ".":
        return False
    if _LIST_NUMBER.match(text, start, match.start() + 1):
        return True
    # The longest abbreviation is short: a slice keeps long sentences linear.
    before = text[max(start, match.start() - 16) : match.start() + 1]
    word = _LAST_WORD.search(before)
    if not word:
        return False
    initial = len(word.group(1)) == 1 and word.group(1).isupper()
    # "I" ends sentences more often than it abbreviates a name.
    return (initial and word.group(1) != "I") or (
        word.group(1).lower() in ABBREVIATIONS
    )
