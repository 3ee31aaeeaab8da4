"""The page of a step shows all tokens, and text cannot add markup."""

import collections
import html.parser

import pytest

from bert_jax.inspect_batch import page as page_lib
from bert_jax.inspect_batch import rows

HOSTILE = "<script>alert('x')</script>&\""


class Page(html.parser.HTMLParser):
    """Parses a page, checks that its tags match, and counts classes and tags."""

    def __init__(self, source):
        super().__init__()
        self.open, self.words = [], []
        self.classes, self.tags = collections.Counter(), collections.Counter()
        self.feed(source)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.tags[tag] += 1
        self.classes.update((dict(attrs).get("class") or "").split())
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] != "style":
            self.words.append(data)


def token(piece, part, mask="", original=None, position=0):
    return rows.Token(piece, original or piece, part, mask, position)


def make_step(num_pairs=1, has_b=True, num_padding=3):
    excerpt = rows.Excerpt(7, 0, 2, 2, HOSTILE)
    tokens = [
        token("[CLS]", "special"),
        token(HOSTILE, "a"),
        token("[MASK]", "a", "masked", HOSTILE),
        token("[SEP]", "special"),
    ]
    if has_b:
        tokens += [
            token("cat", "b", "kept"),
            token("cat", "b", "random", "[UNK]"),
            token("[SEP]", "special"),
        ]
    is_random = True if has_b else None
    pair = rows.Pair(tuple(tokens), is_random, (excerpt,) * (1 + has_b))
    pairs = (pair,) * num_pairs
    row = rows.Row(1, "train-00000-of-00001", 0, 4, pairs, num_padding)
    return rows.Step(
        number=3,
        num_steps=9,
        phase_index=0,
        sequence_length=num_pairs * len(tokens) + num_padding,
        rows=(row, row),
    )


@pytest.mark.parametrize("num_pairs", [1, 3])
@pytest.mark.parametrize("has_b", [True, False])
def test_the_page_has_every_token_of_the_given_rows(num_pairs, has_b):
    step = make_step(num_pairs, has_b)
    legend = Page(page_lib.page(step, ())).classes
    found = Page(page_lib.page(step, step.rows)).classes
    found.subtract(legend)
    assert found["row"] == 2
    assert found["masked"] == 2 * num_pairs
    assert found["random"] == found["kept"] == 2 * num_pairs * has_b
    assert found["padding"] == 2
    sources = 2 * num_pairs * (1 + has_b)
    tokens = 2 * num_pairs * (7 if has_b else 4)
    assert found["token"] == tokens + sources + 2
    one = Page(page_lib.page(step, step.rows[:1]))
    assert "Shown: the first 1 of 2 rows." in one.words


def test_text_is_escaped():
    page = Page(page_lib.page(make_step(), make_step().rows))
    assert page.tags["script"] == 0
    assert HOSTILE in page.words


def test_the_page_loads_no_external_resources():
    page = page_lib.page(make_step(), make_step().rows)
    for word in ("http", "src=", "url(", "@import"):
        assert word not in page
