"""Tests of benchmarks.d2l and of the book's model in PyTorch."""

import json

import numpy as np
import pytest

pytest.importorskip("torch")
from benchmarks import d2l, d2l_torch  # noqa: E402
from bert_jax.data.tokenizers import wordpiece  # noqa: E402
from tests import models  # noqa: E402
from tests.commands import run_well  # noqa: E402
from tests.test_benchmarks import ROW  # noqa: E402


def write_wikitext(path):
    """Writes paragraphs of the form of WikiText-2."""
    sentence = "The <unk> stone @-@ work of {} weighs 1 @,@ {} kg"
    paragraphs = [
        " . ".join(sentence.format(f"town{i % 5}", j) for j in range(3)) + " . "
        for i in range(40)
    ]
    path.write_text(" = Title = \n \n " + "\n ".join(paragraphs) + "\n")


@pytest.mark.slow
def test_d2l_prints_rows_of_both_sides(tmp_path):
    write_wikitext(tmp_path / "wiki.tokens")
    command = [
        *("benchmarks.d2l", f"--data={tmp_path / 'wiki.tokens'}", "--batch=16"),
        f"--workdir={tmp_path / 'work'}",
    ]
    stdout = run_well(*command, "--seeds=0,1", "--steps=20", "--repeats=0")
    found = [json.loads(line) for line in stdout.splitlines()]
    timed = json.loads(run_well(*command, "--seeds=", "--repeats=2"))
    assert [row["unit"] for row in (*found, timed)] == [*d2l.UNITS.values(), "pairs/s"]
    for row in (*found, timed):
        assert row.keys() >= ROW and row["value"] > 0 and row["peer_value"] > 0
        assert row["repeats"] == 2
    loss = found[0]
    assert loss["last_steps"] < loss["value"] and loss["peer_loss_with_padding"] > 0


def test_wikitext_is_split_and_its_escapes_are_undone(tmp_path):
    write_wikitext(tmp_path / "wiki.tokens")
    found = list(d2l.paragraphs(tmp_path / "wiki.tokens"))
    assert len(found) == 40
    assert found[0][0] == f"The {d2l.UNKNOWN} stone-work of town0 weighs 1,0 kg"
    vocab = d2l.vocabulary(d2l.count_words(found))
    assert set(vocab) == {
        *wordpiece.SPECIAL_TOKENS,
        *"the stone - work of weighs 1 , 0 2 kg .".split(),
        *(f"town{i}" for i in range(5)),
    }


def test_the_pairs_of_the_book_are_as_it_describes_them():
    tokenizer = models.TOKENIZER
    encode = tokenizer.encoder()
    texts = [[f"w{i} w{i + 1} w{i + 2}", f"w{i + 3} w{i}"] for i in range(80)]
    pairs = d2l_torch.make_pairs(
        [encode(sentences) for sentences in texts],
        tokenizer,
        32,
        np.random.default_rng(0),
    )
    assert pairs.ids.shape == (80, 32) and pairs.positions.shape == (80, 5)
    assert 25 < pairs.is_next.sum() < 55
    assert pairs.weights.sum(axis=1).tolist() == [1] * 80  # 15% of 8 or 9 tokens
    original = pairs.ids.copy()
    np.put_along_axis(original, pairs.positions[:, :1], pairs.labels[:, :1], axis=1)
    for i, row in enumerate(original):
        first, second = encode(texts[i])
        assert row[1:4].tolist() == first.tolist()
        end = pairs.lengths[i] - 1
        follows = row[5:end].tolist() == second.tolist()
        assert follows if pairs.is_next[i] else True
        assert pairs.segments[i].sum() == end - 4 and (row[end + 1 :] == 0).all()
    share = (pairs.ids == tokenizer.id("[MASK]")).sum() / 80
    assert 0.65 < share < 0.95
