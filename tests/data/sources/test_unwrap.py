"""Tests of bert_jax.data.sources.unwrap: which lines are joined, which are kept."""

import collections
import itertools
import textwrap

import pytest

from bert_jax.data.sources import unwrap

PROSE = [
    "The harbour lay quiet under a low grey sky, and the boats that had come in with"
    " the morning tide were drawn up in a line along the shingle. An old man was"
    " mending a net on the steps of the custom house. He did not look up when the"
    " stranger asked him the way to the inn, but pointed with his needle towards the"
    " church, as if that were answer enough for anybody.",
    "Mr. Hale thanked him and went on. The street was steep, narrow and badly paved,"
    " with a well-worn gutter down the middle; on either side the doors stood open,"
    " and from each of them came the same smell of peat smoke and of fish. Nobody"
    " spoke to him. A dog followed at some distance, stopping whenever he stopped,"
    " until they reached the wall of the churchyard--where it lay down in the grass.",
    '"You will be the new schoolmaster," said a voice above him. He saw a woman of'
    " about forty leaning on the wall, with a basket on her arm. She had evidently"
    " been watching him for some time, and seemed neither pleased nor sorry at what"
    " she saw.",
]
VERSE = [
    "The boats go out when day is done,",
    "And who shall call them home again",
    "But they that wait from sun to sun",
    "And count the lanterns in the rain.",
]
CHINESE = [
    "北京位于华北平原的北部，背靠燕山，毗邻天津市和河北省，是全国的政治中心、文化中心"
    "和国际交往中心，也是世界上拥有世界遗产最多的城市之一。城市的历史可以追溯到三千多年"
    "以前。",
    "这座城市的冬天寒冷而干燥，夏天炎热而多雨，春秋两季都很短促。人们常常在清晨的公园里"
    "散步、下棋、唱歌，到了傍晚，胡同里的孩子们便在老槐树底下追逐玩耍，直到家里的大人叫"
    "他们回去吃饭。",
]


def joined(*documents):
    """Unwraps documents; returns their non-blank lines and the counts."""
    counts = collections.Counter()
    stream = itertools.chain.from_iterable([*lines, None] for lines in documents)
    found, current = [], []
    for line in unwrap.unwrapped(stream, counts):
        if line is None:
            found.append(current)
            current = []
        elif line.strip():
            current.append(line)
    return found, counts


def wrapped(paragraphs, width=72, **options):
    """Returns the lines of wrapped paragraphs with blank lines between them."""
    lines = []
    for paragraph in paragraphs:
        lines += [*textwrap.wrap(paragraph, width, **options), ""]
    return lines


def cut(text, width):
    return [text[i : i + width] for i in range(0, len(text), width)]


# ---------------------------------------------------------------------- joined


@pytest.mark.parametrize("width", [45, 60, 72, 79, 98])
def test_wrapped_paragraphs_are_joined(width):
    found, counts = joined(wrapped(PROSE, width))
    assert found == [PROSE]
    assert counts == {"documents_unwrapped": 1}


@pytest.mark.parametrize("indent", ["  ", "      ", "\t"])
def test_paragraphs_that_begin_with_an_indent_instead_of_a_blank_line(indent):
    lines = [line for line in wrapped(PROSE, initial_indent=indent) if line]
    assert joined(lines)[0] == [PROSE]


def test_text_with_every_line_indented():
    lines = wrapped(PROSE, initial_indent="     ", subsequent_indent="   ")
    assert joined(lines)[0] == [PROSE]


def test_the_items_of_a_wrapped_list_are_not_joined():
    items = [f"{i}. {text}" for i, text in enumerate(PROSE, start=1)]
    lines = [line for line in wrapped(items, subsequent_indent="   ") if line]
    assert joined(lines)[0] == [items]


def test_quotations_narrower_than_the_text_are_joined():
    quotation = textwrap.wrap(PROSE[0], 60, initial_indent="", subsequent_indent="")
    lines = [*wrapped(PROSE), *(f"    {line}" for line in quotation)]
    (found,), _ = joined(lines)
    assert found[:3] == PROSE
    assert len(found[3:]) < len(quotation) / 2


@pytest.mark.parametrize(
    "line, following, expected",
    [
        ("it was a well-", "worn path", "well-worn"),
        ("it was--", "or seemed", "was--or"),
        ("so he thought,", "--wrongly, it seems", "thought,--wrongly"),
        ("so he thought", "--wrongly, it seems", "thought--wrongly"),
        ("the two -", "he and she", "two - he"),
        ("the path", "went on", "path went"),
    ],
)
def test_no_space_is_added_to_a_hyphenated_word_or_a_dash(line, following, expected):
    first, *rest = wrapped(PROSE)[:-1]
    padding = first[: 72 - len(line) - 1].rsplit(" ", 1)[0]
    lines = [first, *rest, "", f"{padding} {line}", following]
    assert expected in joined(lines)[0][0][-1]


# ---------------------------------------- blocks kept in a wrapped document


@pytest.mark.parametrize(
    "block",
    [
        VERSE,
        ["Chapter 1    The Harbour        1", "Chapter 2    The Inn           17"],
        ["The Harbour, in which it begins . . . . . . . . . . . . . . . . . . . 1"] * 2,
        ["| boats that came in with the tide | 12 |", "| nets and other gear | 7 |"],
        ["CHAPTER II", "The Inn"],
        ["* rope and a bucket", "* a net, which had been mended before, and a needle"],
        ["# The Inn", "## Of its landlord"],
    ],
    ids=["verse", "columns", "contents", "table", "title", "bullets", "headings"],
)
def test_blocks_that_are_not_prose_are_kept(block):
    lines = [*wrapped(PROSE[:2]), *block, "", *wrapped(PROSE[2:])]
    assert joined(lines)[0] == [[*PROSE[:2], *block, *PROSE[2:]]]


def test_a_heading_directly_above_a_paragraph_is_kept():
    lines = ["# The Harbour", *wrapped(PROSE[:2]), "## The Inn", *wrapped(PROSE[2:])]
    assert joined(lines)[0] == [["# The Harbour", *PROSE[:2], "## The Inn", PROSE[2]]]


# ----------------------------------------------------------- not wrapped at all

PENTAMETER = [
    "Of harbours and of those who leave the shore",
    "To seek beyond the fog what none has found,",
    "I sing, who never left it, and whose door",
    "Looks landward on the slow and patient ground",
    "That feeds us all, and asks for nothing more",
    "Than to be turned before the frost comes round",
] * 4
CODE = [
    "def newest(directory, pattern, is_whole, default=None):",
    "    found = [path for path in directory.glob(pattern) if is_whole(path)]",
    "    if not found and default is not None:",
    "        return default",
    "    for path in sorted(found, key=lambda path: path.stat().st_mtime):",
    "        report(path, size=path.stat().st_size, seconds=time.time() - started)",
    "    return max(found, key=lambda path: path.stat().st_mtime)",
    "",
] * 5
DIALOGUE = [
    "Hale: I was told that there would be a cart to meet me at the harbour.",
    "Woman: There is no cart. There has not been one since the winter.",
    "Hale: Then I suppose that I must carry the box myself, mustn't I?",
    "Woman: You may leave it here. Nobody would touch it, poor as we are.",
] * 4
NOT_WRAPPED = {
    "verse": PENTAMETER,
    "code": CODE,
    "dialogue": DIALOGUE,
    "list": [
        f"kettle number {i}, without lid" + ", dented" * (i % 7) for i in range(40)
    ],
    "paragraph per line": PROSE * 3,
    "sentence per line": ". ".join(PROSE * 3).split(". "),
    "table": [
        f"{i:4}  {i * i:6}  {i**3:9}  {'yes' if i % 2 else 'no':>6}  kg"
        for i in range(40)
    ],
    "lower-case lines of any length": [
        f"{word} {'ab' * (i % 30)}" for i, word in enumerate("mno" * 20)
    ],
}


@pytest.mark.parametrize("lines", NOT_WRAPPED.values(), ids=NOT_WRAPPED)
def test_lines_that_are_not_wrapped_are_kept(lines):
    found, counts = joined(lines)
    assert found == [[line for line in lines if line.strip()]]
    assert not counts


@pytest.mark.parametrize("num_lines", [2, 3, 4])
def test_a_few_lines_of_one_width_are_joined(num_lines):
    lines = textwrap.wrap(PROSE[0], 72)[:num_lines]
    found, counts = joined(lines)
    assert found == [[" ".join(lines)]]
    assert counts == {"documents_unwrapped": 1}


@pytest.mark.parametrize(
    "lines",
    [
        textwrap.wrap(PROSE[0], 50)[:2],
        ["red cabbage and white, finely cut, with salt", "caraway", "juniper berries"],
        ["a kettle with a lid that does not quite fit", "its handle", "a wooden spoon"],
        VERSE[:3],
        [PROSE[0], "of which nobody spoke", "until they reached the wall"],
    ],
    ids=["two lines", "list", "another list", "verse", "long line"],
)
def test_a_few_lines_without_evidence_of_a_width_are_kept(lines):
    found, counts = joined(lines)
    assert found == [lines] and not counts


def test_every_document_is_examined_separately():
    documents = [wrapped(PROSE), PENTAMETER, PROSE, CODE, wrapped(PROSE, 60), DIALOGUE]
    found, counts = joined(*documents)
    code = [line for line in CODE if line]
    assert found == [PROSE, PENTAMETER, PROSE, code, PROSE, DIALOGUE]
    assert counts == {"documents_unwrapped": 2}


# ------------------------------------------------------------------ other scripts


@pytest.mark.parametrize("width", [20, 25, 40, 72])
def test_chinese_is_joined_without_spaces(width):
    texts = CHINESE * 2
    lines = [line for text in texts for line in [*cut(text, width), ""]]
    assert joined(lines)[0] == [texts]


def test_chinese_and_japanese_paragraphs_begin_with_wide_spaces():
    texts = CHINESE * 3
    lines = [line for text in texts for line in cut(f"\u3000\u3000{text}", 30)]
    assert joined(lines)[0] == [texts]


def test_latin_words_in_chinese_text():
    """The width is counted in columns; a wide character takes two."""
    text = CHINESE[0].replace("，", "，BERT 模型也用 Python 语言，")
    lines, line, size = [], "", 0
    for character in text * 3:
        line, size = line + character, size + 1 + (not character.isascii())
        if size >= 60 and character != " ":
            lines, line, size = [*lines, line], "", 0
    (found,), _ = joined([*lines, line])
    assert len(found) == 1
    assert found[0].replace(" ", "") == (text * 3).replace(" ", "")


def test_chinese_verse_is_kept():
    verse = ["床前明月光，", "疑是地上霜。", "举头望明月，", "低头思故乡。"] * 5
    assert joined(verse)[0] == [verse]


def test_korean_keeps_its_spaces():
    text = (
        "서울은 한반도의 중앙에 있으며 한강을 사이에 두고 남쪽과 북쪽으로 펼쳐져 있는"
        " 도시이다. 이 도시에는 오래된 궁궐과 새로 지은 높은 건물들이 나란히 서 있고"
        " 사람들은 이른 아침부터 늦은 밤까지 바쁘게 움직인다. 가을이면 산마다 단풍이"
        " 들고 거리에는 은행잎이 노랗게 쌓여 지나가는 사람들의 발걸음을 늦춘다."
    )
    assert joined(textwrap.wrap(text, 45))[0] == [[text]]


# ------------------------------------------------------------------- large documents


def test_memory_is_bounded():
    """The first lines are yielded before the whole document is read."""
    read = 0

    def source():
        nonlocal read
        for line in itertools.chain.from_iterable(itertools.repeat(wrapped(PROSE))):
            read += 1
            yield line

    stream = unwrap.unwrapped(source(), collections.Counter())
    assert next(stream) == PROSE[0]
    assert read <= 2 * unwrap.PART_LINES


def test_parts_of_a_document_end_between_paragraphs():
    copies = 3 * unwrap.PART_LINES // len(wrapped(PROSE))
    found, counts = joined(wrapped(PROSE * copies))
    assert found == [PROSE * copies]
    assert counts == {"documents_unwrapped": 1}


def test_verse_of_many_pages_in_a_wrapped_document_is_kept():
    copies = unwrap.PART_LINES // len(wrapped(PROSE)) + 1
    verse = VERSE * unwrap.PART_LINES
    lines = [*wrapped(PROSE * copies), *verse, "", *wrapped(PROSE)]
    (found,), counts = joined(lines)
    assert found == [*PROSE * copies, *verse, *PROSE]
    assert counts == {"documents_unwrapped": 1}
