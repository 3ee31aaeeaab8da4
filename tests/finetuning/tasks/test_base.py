"""Texts and choices are converted to batches; padding rows have weight 0."""

import numpy as np

from bert_jax.data.tokenizers import wordpiece
from bert_jax.finetuning.tasks import base, similarity
from bert_jax.finetuning.tasks.base import Texts
from bert_jax.finetuning.tasks.choice import Choices
from tests.finetuning import tuned

LETTERS = tuple("abcdefgh")
TOKENIZER = wordpiece.WordPiece((*wordpiece.SPECIAL_TOKENS, *LETTERS), lowercase=True)


def shown(ids_T):
    names = {0: "", 1: "?", 2: "<", 3: "|"}
    return "".join(names.get(i, TOKENIZER.vocab[i]) for i in ids_T)


def test_single_texts_are_truncated_at_the_end():
    texts, labels = ["a b", "", "a b c d e f g h"], np.array([1, 0, 1], np.int32)
    features = base.text_features(texts, None, labels, TOKENIZER, 6)
    batch = features.batch(np.array([2, 0, 1, -1]))
    rows = [shown(ids) for ids in batch["input_ids"]]
    assert rows == ["<abcd|", "<ab|", "<|", "<ab|"]
    assert batch["labels"].tolist() == [1, 1, 0, 1]
    assert batch["weights"].tolist() == [1, 1, 1, 0]
    assert batch["weights"].dtype == np.float32
    assert (len(features), features.num_truncated) == (3, 1)


def test_pairs_are_truncated_in_the_longer_text():
    a, b = ["a b c d e", "a", "a b", "a b"], ["h g", "h g f e d", "", "h g f"]
    features = base.text_features(a, b, None, TOKENIZER, 8)
    batch = features.batch(np.arange(4))
    rows = [shown(ids) for ids in batch["input_ids"]]
    assert rows == ["<abc|hg|", "<a|hgfe|", "<ab|", "<ab|hgf|"]
    assert batch["segment_ids"][0].tolist() == [0] * 5 + [1] * 3
    assert not batch["segment_ids"][2].any()
    assert "labels" not in batch and features.num_truncated == 2


def test_choices_are_consecutive_rows_of_an_example():
    choices = Choices(
        ["a b", "c"], [["h", "g f"], ["e", "d"]], np.array([1, 0], np.int32)
    )
    features = tuned.make_task("multiple_choice").featurize(
        choices, (), TOKENIZER, 8, "train"
    )
    assert len(features) == 2
    batch = features.batch(np.array([1, 0, -1]))
    assert batch["input_ids"].shape == (3, 2, 8)
    rows = [[shown(ids) for ids in example] for example in batch["input_ids"]]
    assert rows[:2] == [["<c|e|", "<c|d|"], ["<ab|h|", "<ab|gf|"]]
    assert batch["labels"].tolist() == [0, 1, 1]
    assert batch["weights"].tolist() == [1, 1, 0]


def test_separate_texts_of_a_pair_are_rows_of_their_own():
    texts = Texts(["a b", "c"], ["h", "e d f"], np.array([0.5, 1], np.float32), None)
    features = similarity.separate_rows(texts, TOKENIZER, 4)
    assert (len(features), features.num_truncated) == (2, 1)
    batch = features.batch(np.array([1, 0, -1]))
    rows = [[shown(ids) for ids in example] for example in batch["input_ids"]]
    assert rows[:2] == [["<c|", "<ed|"], ["<ab|", "<h|"]]
    assert not batch["segment_ids"].any()
    assert batch["labels"].tolist() == [1.0, 0.5, 0.5]
    assert batch["weights"].tolist() == [1, 1, 0]
