"""Words and tags in every scheme are read as sentences with BIO tags."""

import pytest

from bert_jax.errors import ConfigError
from bert_jax.finetuning.data import conll

SCHEMES = {
    "IOB1": "I-PER I-PER O I-LOC B-LOC I-ORG O",
    "BIO": "B-PER I-PER O B-LOC B-LOC B-ORG O",
    "BIOES": "B-PER E-PER O S-LOC S-LOC S-ORG O",
    "BILOU": "B-PER L-PER O U-LOC U-LOC U-ORG O",
}


@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_scheme_is_converted_to_the_same_tags(scheme):
    assert conll.to_bio(SCHEMES[scheme].split()) == SCHEMES["BIO"].split()


def test_invalid_sequences_are_read_as_conlleval_does():
    assert conll.to_bio(["O", "I-A", "I-B", "E-B", "I-B"]) == [
        "O",
        "B-A",
        "B-B",
        "I-B",
        "B-B",
    ]


def test_a_file_with_documents_and_four_columns(tmp_path):
    path = tmp_path / "a.conll"
    path.write_text(
        "-DOCSTART- -X- -X- O\n\nEU NNP B-NP I-ORG\nrejects VBZ B-VP O\n\t\n\n"
        "Bonn NNP B-NP I-LOC"
    )
    found = conll.read(f"conll:{path}", "", "")
    assert found.words == [["EU", "rejects"], ["Bonn"]]
    assert found.tags == [["B-ORG", "O"], ["B-LOC"]]
    names = conll.tag_names(found.tags)
    assert names == ("O", "B-LOC", "I-LOC", "B-ORG", "I-ORG")
    assert [c.tolist() for c in found.classes(names, "labels")] == [[3, 0], [1]]
    with pytest.raises(
        ConfigError, match=r"2, has the tag 'B-LOC', .* config.task.labels \(O, B-"
    ):
        found.classes(("O", "B-ORG"), "config.task.labels")


def test_tabs_take_precedence_over_spaces_and_one_column_means_no_tags(tmp_path):
    path = tmp_path / "a.conll"
    path.write_text("New York\tB-loc\n#\tO\n")
    assert conll.read(f"conll:{path}", "", "").words == [["New York", "#"]]
    path.write_text("Only\nwords\n")
    found = conll.read(f"conll:{path}", "", "")
    assert found.tags is None and found.classes(("O",), "labels") is None


@pytest.mark.parametrize(
    "text, message",
    [
        ("", "has no sentences"),
        ("-DOCSTART- O\n", "has no sentences"),
        ("a O\nb\n", "a.conll:2 has 1 columns, but the lines before it have 2;"),
        ("a O\nb PER\n", "a.conll:2 has the invalid tag 'PER'"),
    ],
)
def test_invalid_files_are_errors(text, message, tmp_path):
    path = tmp_path / "a.conll"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        conll.read(f"conll:{path}", "", "")


def test_a_word_may_contain_a_no_break_space(tmp_path):
    path = tmp_path / "a.conll"
    path.write_text("10\u00a0000 O\n\u00a0 O\n\nc  B-x \n")
    found = conll.read(f"conll:{path}", "", "")
    assert found.words == [["10\u00a0000", "\u00a0"], ["c"]]
    path.write_text("10\u00a0000\tO\n\u00a0\tO\n \nc\tB-x\t\n")
    assert conll.read(f"conll:{path}", "", "") == found


def test_tables_have_list_valued_columns(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text(
        '{"tokens": ["EU", "rejects"], "ner": ["S-ORG", "O"]}\n'
        '{"tokens": [], "ner": []}\n'
    )
    found = conll.read(f"jsonl:{path}", "tokens", "ner")
    assert found.words == [["EU", "rejects"]] and found.tags == [["B-ORG", "O"]]
    assert found.num_empty == 1
    assert conll.read(f"jsonl:{path}", "tokens", "").tags is None
    with pytest.raises(
        ConfigError, match="^config.task.words names the column 'words'"
    ):
        conll.read(f"jsonl:{path}", "words", "ner")
    for line, message in (
        ('{"tokens": ["a"], "ner": []}', "sentence 1, has 1 words but 0 tags"),
        ('{"tokens": ["a"], "ner": ["PER"]}', "sentence 1, has the invalid tag 'PER'"),
        ('{"tokens": "a b", "ner": ["O"]}', "'tokens': 'a b' is not a list"),
        ('{"tokens": [], "ner": []}', "has no sentences"),
    ):
        path.write_text(line)
        with pytest.raises(ConfigError, match=message):
            conll.read(f"jsonl:{path}", "tokens", "ner")
