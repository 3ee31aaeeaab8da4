"""Units in which predicted and reference answers are compared: words or characters.

Words follow SQuAD's evaluate-v1.1.py and evaluate-v2.0.py (Rajpurkar et al. 2016 and
2018). Characters follow the evaluation of CMRC 2018 (Cui et al. 2019) and are meant for
text without spaces between words. They differ from that evaluation in two points: kana
are single characters, as ideographs are, to support Japanese; and the text between
single characters is split by the regular expression below rather than by NLTK.
"""

import collections
import dataclasses
import difflib
import re
import string
from collections.abc import Callable, Sequence

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)

# Punctuation that CMRC's evaluation removes. ASCII . , ! ? ( ) are not among it.
_CMRC_PUNCTUATION = str.maketrans(
    "",
    "",
    "-:_*^/\\~`+="
    "\uff0c\u3002\uff1a\uff1f\uff01\u201c\u201d\uff1b\u2019\u300a\u300b\u00b7\u3001"
    "\u300c\u300d\uff08\uff09\uff0d\uff5e\u300e\u300f",
)
# Ideographs, hiragana and katakana.
_SINGLE = (
    "\u3005-\u3007\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
    "\uff66-\uff9f\U00020000-\U0003ffff"
)
_LETTER = rf"[^\W_{_SINGLE}]"
# A single character; a word or number, with punctuation inside as in 3.5; or one
# punctuation character.
_UNITS = re.compile(rf"[{_SINGLE}]|{_LETTER}+(?:[.,']{_LETTER}+)*|\S")


@dataclasses.dataclass(frozen=True)
class Units:
    """Rules for comparing two answers.

    Attributes:
      normalize: returns the form of a text that exact match compares.
      split: returns the units of a text.
      count_common: returns the number of units that two texts share.
    """

    normalize: Callable[[str], str]
    split: Callable[[str], list[str]]
    count_common: Callable[[Sequence[str], Sequence[str]], int]

    def exact_match(self, answer: str, reference: str) -> float:
        """Returns 1.0 if the normalized texts are equal, else 0.0."""
        return float(self.normalize(answer) == self.normalize(reference))

    def f1(self, answer: str, reference: str) -> float:
        """Returns the harmonic mean of precision and recall over an answer's units."""
        found, expected = self.split(answer), self.split(reference)
        common = self.count_common(found, expected)
        # 2pr / (p + r) with p = common / found and r = common / expected.
        return 2 * common / (len(found) + len(expected)) if common else 0.0


def _normalize_words(text: str) -> str:
    """Lower-cases the text and removes punctuation, articles and extra spaces."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def _split_words(text: str) -> list[str]:
    return _normalize_words(text).split()


def _count_shared(a: Sequence[str], b: Sequence[str]) -> int:
    return sum((collections.Counter(a) & collections.Counter(b)).values())


def _normalize_characters(text: str) -> str:
    """Lower-cases the text and removes the punctuation that CMRC removes."""
    return text.lower().strip().translate(_CMRC_PUNCTUATION)


def _split_characters(text: str) -> list[str]:
    return _UNITS.findall(_normalize_characters(text))


def _longest_common_run(a: Sequence[str], b: Sequence[str]) -> int:
    matcher = difflib.SequenceMatcher(None, a, b, autojunk=False)
    return matcher.find_longest_match().size


UNITS = {
    "words": Units(_normalize_words, _split_words, _count_shared),
    "characters": Units(_normalize_characters, _split_characters, _longest_common_run),
}
