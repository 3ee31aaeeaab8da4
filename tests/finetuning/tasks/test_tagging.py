"""The first token of a word carries its tag, and token classes map back to words."""

import numpy as np

from bert_jax.data.tokenizers import wordpiece
from bert_jax.finetuning.data.conll import Sentences
from bert_jax.finetuning.tasks import tagging

VOCAB = (*wordpiece.SPECIAL_TOKENS, "river", "##side", "old", ".")
TOKENIZER = wordpiece.WordPiece(VOCAB, lowercase=True)
NAMES = ("O", "B-loc", "I-loc")
SENTENCES = Sentences(
    "a.conll",
    [["old", "riverside", "\u200b", "."], ["Riverside"], ["old"] * 4 + ["riverside"]],
    [["O", "B-loc", "I-loc", "O"], ["B-loc"], ["O"] * 4 + ["B-loc"]],
)


def test_labels_are_on_first_tokens():
    features = tagging.from_sentences(SENTENCES, NAMES, TOKENIZER, 8, "labels")
    batch = features.batch(np.array([0, 1, 2, -1]))
    pieces = [[VOCAB[i] for i in ids] for ids in batch["input_ids"]]
    assert pieces[0] == "[CLS] old river ##side . [SEP] [PAD] [PAD]".split()
    no = -100
    assert batch["labels"].tolist() == [
        [no, 0, 1, no, 0, no, no, no],
        [no, 1, no, no, no, no, no, no],
        [no, 0, 0, 0, 0, 1, no, no],
        [no, 0, 1, no, 0, no, no, no],
    ]
    assert batch["weights"].tolist() == [1, 1, 1, 0]
    assert len(features) == 3 and features.num_cut == 0


def test_truncated_words_are_counted_and_predicted_as_o():
    features = tagging.from_sentences(SENTENCES, NAMES, TOKENIZER, 5, "labels")
    assert features.num_cut == 3  # ".", "old", "riverside"
    predicted_BT = np.full((3, 5), 2)
    found = features.word_classes(np.arange(3), predicted_BT)
    assert [x.tolist() for x in found] == [[2, 2, 0, 0], [2], [2, 2, 2, 0, 0]]


def test_truncated_words_are_o_for_any_order_of_names():
    names = ("B-x", "O", "I-x")
    sentences = Sentences("a.conll", SENTENCES.words, None)
    features = tagging.from_sentences(sentences, names, TOKENIZER, 5, "labels")
    found = features.word_classes(np.arange(3), np.full((3, 5), 2))
    assert [x.tolist() for x in found] == [[2, 2, 1, 1], [2], [2, 2, 2, 1, 1]]


def test_word_classes_are_restored_from_token_classes():
    features = tagging.from_sentences(SENTENCES, NAMES, TOKENIZER, 9, "labels")
    labels_BT = features.batch(np.arange(3))["labels"]
    found = features.word_classes(np.array([2, 0]), labels_BT[[2, 0]])
    expected = SENTENCES.classes(NAMES, "labels")
    expected[0][2] = 0  # the tokenizer drops this word, so it has no token
    assert [x.tolist() for x in found] == [expected[2].tolist(), expected[0].tolist()]


def test_without_tags_there_are_no_labels():
    sentences = Sentences("a.conll", SENTENCES.words, None)
    features = tagging.from_sentences(sentences, NAMES, TOKENIZER, 8, "labels")
    assert "labels" not in features.batch(np.arange(3))
    assert len(features.word_classes(np.array([0]), np.ones((1, 8)))[0]) == 4
