"""Words and tags of every scheme are read; the first token of a word has its tag."""

import numpy as np
import pytest

from bert_jax.data.tokenizers import base, wordpiece
from bert_jax.errors import ConfigError
from bert_jax.finetuning.tasks import tagging
from bert_jax.finetuning.tasks.tagging import Sentences

VOCAB = (*base.SPECIAL_TOKENS, "river", "##side", "old", ".")
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


@pytest.mark.parametrize("names", [NAMES, ("B-x", "O", "I-x")])
def test_truncated_words_are_counted_and_predicted_as_o(names):
    sentences, o = Sentences("a.conll", SENTENCES.words, None), names.index("O")
    features = tagging.from_sentences(sentences, names, TOKENIZER, 5, "labels")
    assert "labels" not in features.batch(np.arange(3))  # without tags
    assert features.num_cut == 3  # ".", "old", "riverside"
    found = features.word_classes(np.full((3, 5), 2))
    assert [x.tolist() for x in found] == [[2, 2, o, o], [2], [2, 2, 2, o, o]]


def test_word_classes_are_restored_from_token_classes():
    features = tagging.from_sentences(SENTENCES, NAMES, TOKENIZER, 9, "labels")
    labels_BT = features.batch(np.arange(3))["labels"]
    found = features.word_classes(labels_BT)
    expected = SENTENCES.classes(NAMES, "labels")
    expected[0][2] = 0  # the tokenizer drops this word, so it has no token
    assert [x.tolist() for x in found] == [x.tolist() for x in expected]


def read(path, words="tokens", tags="ner", role="train", header=()):
    return tagging.read(f"conll:{path}", words, tags, role, header)


SCHEMES = {
    "IOB1": "I-PER I-PER O I-LOC B-LOC I-ORG O",
    "BIO": "B-PER I-PER O B-LOC B-LOC B-ORG O",
    "BIOES": "B-PER E-PER O S-LOC S-LOC S-ORG O",
    "BILOU": "B-PER L-PER O U-LOC U-LOC U-ORG O",
}


@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_scheme_is_converted_to_the_same_tags(scheme):
    assert tagging.to_bio(SCHEMES[scheme].split()) == SCHEMES["BIO"].split()
    invalid = tagging.to_bio(["O", "I-A", "I-B", "E-B", "I-B"])  # as conlleval
    assert invalid == ["O", "B-A", "B-B", "I-B", "B-B"]


def test_a_file_with_documents_and_four_columns(tmp_path):
    path = tmp_path / "a.conll"
    path.write_text(
        "-DOCSTART- -X- -X- O\n\nEU NNP B-NP I-ORG\nrejects VBZ B-VP O\n\t\n\n"
        "Bonn NNP B-NP I-LOC"
    )
    found = read(path)
    assert found.words == [["EU", "rejects"], ["Bonn"]]
    assert found.tags == [["B-ORG", "O"], ["B-LOC"]]
    names = tagging.tag_names(found.tags)
    assert names == ("O", "B-LOC", "I-LOC", "B-ORG", "I-ORG")
    assert [c.tolist() for c in found.classes(names, "labels")] == [[3, 0], [1]]
    with pytest.raises(
        ConfigError, match=r"2, has the tag 'B-LOC', .* config.task.labels \(O, B-"
    ):
        found.classes(("O", "B-ORG"), "config.task.labels")


def test_tabs_take_precedence_over_spaces_and_one_column_means_no_tags(tmp_path):
    path = tmp_path / "a.conll"
    path.write_text("New York\tB-loc\n#\tO\n")
    assert read(path).words == [["New York", "#"]]
    path.write_text("Only\nwords\n")
    found = read(path)
    assert found.tags is None and found.classes(("O",), "labels") is None


GERMAN = (
    "#\thttp://example.org [2005]\n1\tDer\tO\tO\n2\tBerliner\tB-LOCderiv\tO\n\n"
    "# next\n1\tBerlin\tB-LOC\tB-ORG\n"
)


def test_the_columns_of_words_and_tags_may_be_numbers(tmp_path):
    path = tmp_path / "a.conll"
    path.write_text(GERMAN)
    found = read(path, "2", "3")
    assert found.words == [["Der", "Berliner"], ["Berlin"]]
    assert found.tags == [["O", "B-LOCderiv"], ["B-LOC"]]
    assert read(path, "2").tags == [["O", "O"], ["B-ORG"]]
    path.write_text("1\tDer\n2\tHund\n")
    for tags in ("3", ""):
        assert read(path, "2", tags, "test").tags is None
    path.write_text("# text = der Hund\n1\tDer\tO\t_\tx\n2\tHund\tB-A\t_\tx\n")
    assert read(path, "2", "3").words == [["Der", "Hund"]]


@pytest.mark.parametrize(
    "text, columns, message",
    [
        ("", {}, "has no sentences"),
        ("-DOCSTART- O\n", {}, "has no sentences"),
        ("a O\nb\n", {}, "a.conll:2 has 1 columns, but most lines have 2; give every"),
        ("a O\n# b c\n", {}, "a.conll:2 has 3 columns, but most lines have 2"),
        ("a O\nb PER\n", {}, "a.conll:2 has the invalid tag 'PER'"),
        (GERMAN, {}, "counts the words .* first column; .* --config.task.words=2$"),
        ("0 a O\n1 b O\n", {}, "counts the words of each sentence"),
        (GERMAN, {"words": "2", "tags": "1"}, "a.conll:2 has the invalid tag '1'"),
        (GERMAN, {"words": "5"}, "config.task.words=5 in .*a.conll: it has 4 columns"),
        (GERMAN, {"words": "2", "tags": "0"}, "config.task.tags=0 in .* 4 columns"),
        ("a\nb\n", {"tags": "2"}, "config.task.tags=2 in .*: it has 1 columns"),
        ("a O\n", {"header": ("a", "b")}, r"csv: or tsv: file; .* config.data.header="),
    ],
)
def test_invalid_files_and_columns_are_errors(text, columns, message, tmp_path):
    (tmp_path / "a.conll").write_text(text)
    with pytest.raises(ConfigError, match=message):
        read(tmp_path / "a.conll", **columns)


def test_a_word_may_contain_a_no_break_space(tmp_path):
    path = tmp_path / "a.conll"
    path.write_text("10\u00a0000 O\n\u00a0 O\n\nc  B-x \n")
    found = read(path)
    assert found.words == [["10\u00a0000", "\u00a0"], ["c"]]
    path.write_text("10\u00a0000\tO\n\u00a0\tO\n \nc\tB-x\t\n")
    assert read(path) == found


def test_tables_have_list_valued_columns(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text(
        '{"tokens": ["EU", "rejects"], "ner": ["S-ORG", "O"]}\n'
        '{"tokens": [], "ner": []}\n'
    )
    found = tagging.read(f"jsonl:{path}", "tokens", "ner", "train")
    assert found.words == [["EU", "rejects"]] and found.tags == [["B-ORG", "O"]]
    assert found.num_empty == 1
    csv = tmp_path / "a.csv"
    csv.write_text('tokens,ner\n"[\'EU\', \'rejects\']","[""S-ORG"", ""O""]"\n[],[]')
    other = tmp_path / "without_names.csv"
    other.write_text(csv.read_text().partition("\n")[2])
    for file, header in ((csv, ()), (other, ("tokens", "ner"))):
        of_csv = tagging.read(f"csv:{file}", "tokens", "ner", "train", header)
        assert (of_csv.words, of_csv.tags) == (found.words, found.tags)
    assert tagging.read(f"jsonl:{path}", "tokens", "x", "test").tags is None
    for line, message in (
        ('{"words": ["a"]}', "^config.task.words='tokens': .* has no column 'tokens'"),
        ('{"tokens": ["a"], "ner": []}', "sentence 1, has 1 words but 0 tags"),
        ('{"tokens": ["a"], "ner": ["PER"]}', "sentence 1, has the invalid tag 'PER'"),
        ('{"tokens": "a b", "ner": ["O"]}', "1, has 'a b' in 'tokens', which is"),
        ('{"tokens": ["a", null], "ner": []}', "'a', None. in 'tokens', which"),
        ('{"tokens": [], "ner": []}', "has no sentences"),
    ):
        path.write_text(line)
        with pytest.raises(ConfigError, match=message):
            tagging.read(f"jsonl:{path}", "tokens", "ner", "train")


def test_predictions_are_written_for_conlleval(tmp_path):
    words, tags = [["old", "Rome"], ["x"]], [["O", "B-loc"], ["O"]]
    predicted = [["O", "B-per"], ["B-loc"]]
    path = tmp_path / "predictions.conll"
    tagging.Sentences("a", words, tags).write(tmp_path, predicted, ())
    assert path.read_text() == "old O O\nRome B-loc B-per\n\nx O B-loc\n\n"
    tagging.Sentences("a", words, None).write(tmp_path, predicted, ())
    assert path.read_text() == "old O\nRome B-per\n\nx B-loc\n\n"
    of_list = tagging.Sentences("a", [["New  York", "", "10\u00a0000"]], None)
    of_list.write(tmp_path, [["B-work of art", "O", "O"]], ())
    assert path.read_text() == "New_York B-work_of_art\n_ O\n10\u00a0000 O\n\n"
