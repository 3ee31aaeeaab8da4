"""Tests that a directory's tokenizer has the ids of transformers, or is refused."""

import json

import pytest
import tokenizers

from bert_jax.data.tokenizers import library
from bert_jax.data.tokenizers.base import SPECIAL_TOKENS
from bert_jax.data.tokenizers.library import LibraryTokenizer
from bert_jax.data.tokenizers.wordpiece import WordPiece
from bert_jax.errors import ConfigError
from bert_jax.interop import huggingface_tokenizer, huggingface_write
from tests.models import change_json

LETTERS = (
    "abcdefghijklmnopqrstuvwxyz\u00e4\u00f6\u00e9\u03c3\u03c2ABC.,!()[]\u6771\u4eac"
)
VOCAB = (*SPECIAL_TOKENS, *LETTERS, *(f"##{x}" for x in LETTERS), "the", "cat", "E1")
TEXTS = [
    "The cat, sch\u00f6n (CAF\u00c9) e\u0301",
    "\u6771\u4eac the\u6771cat \u03a3\u03a3 \ue000a",
    "a" * 49 + " " + "b" * 60 + " " + "c" * 150,
    "",
    "\u200b",
    "[E1] the new-token newtoken [MASK",
]


def bert(**settings):
    return library.bert(VOCAB, settings)


def write(directory, tokenizer=None, vocab=None, **settings):
    (directory / "config.json").write_text('{"model_type": "bert"}')
    if tokenizer is not None:
        tokenizer.save(str(directory / "tokenizer.json"))
    if vocab is not None:
        (directory / "vocab.txt").write_text("".join(f"{x}\n" for x in vocab))
    names = zip(("pad", "unk", "cls", "sep", "mask"), SPECIAL_TOKENS, strict=True)
    settings = {f"{name}_token": token for name, token in names} | settings
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))


def open_in(directory, lowercase=True):
    opened = huggingface_tokenizer.open_tokenizer(directory, {})
    assert opened is not None
    return opened.build(lowercase if opened.lowercase is None else opened.lowercase)


def added(id_):
    return {"added_tokens_decoder": {id_: {"content": "new"}}}


def course_like():
    tokenizer = bert()
    steps = tokenizers.normalizers
    tokenizer.normalizer = steps.Sequence(
        [steps.NFD(), steps.Lowercase(), steps.StripAccents()]
    )
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Sequence(
        [
            tokenizers.pre_tokenizers.WhitespaceSplit(),
            tokenizers.pre_tokenizers.Punctuation(),
        ]
    )
    return tokenizer


def short_words():
    state = json.loads(bert().to_str())
    state["model"]["max_input_chars_per_word"] = 50
    return tokenizers.Tokenizer.from_str(json.dumps(state))


def other_prefix():
    tokenizer = bert()
    ids = {token.replace("##", "@@"): i for i, token in enumerate(VOCAB)}
    tokenizer.model = tokenizers.models.WordPiece(ids, unk_token="[UNK]")
    tokenizer.model.continuing_subword_prefix = "@@"
    return tokenizer


def bpe():
    ids = {token: i for i, token in enumerate((*VOCAB, "th"))}
    model = tokenizers.models.BPE(vocab=ids, merges=[("t", "h")], unk_token="[UNK]")
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    library.add_special_tokens(tokenizer)
    return tokenizer


def unigram():
    pieces = [(token, -float(i)) for i, token in enumerate((*VOCAB, "\u2581"))]
    tokenizer = tokenizers.Tokenizer(tokenizers.models.Unigram(pieces, 1))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()
    library.add_special_tokens(tokenizer)
    return tokenizer


def with_added():
    tokenizer = bert()
    tokenizer.add_tokens(["new-token"])
    tokenizer.add_special_tokens(["[E1]"])
    return tokenizer


OF_FILE = {"tokenizer_class": "PreTrainedTokenizerFast"}
OF_BERT = {"tokenizer_class": "BertTokenizer"}
ADDED = {str(len(VOCAB)): {"content": "new-token", "normalized": False}}
DIRECTORIES = {
    "vocab.txt": {"vocab": VOCAB, "do_lower_case": True},
    "cased": {"vocab": VOCAB, "do_lower_case": False} | OF_BERT,
    "accents": {"vocab": VOCAB, "do_lower_case": True, "strip_accents": False},
    "ideographs": {
        "vocab": VOCAB,
        "do_lower_case": True,
        "tokenize_chinese_chars": False,
    },
    "lines": {"vocab": (*VOCAB, "", "cat", "the"), "do_lower_case": True},
    "added": {"vocab": VOCAB, "do_lower_case": True, "added_tokens_decoder": ADDED},
    "extra": {
        "vocab": (*VOCAB, "[E1]"),
        "do_lower_case": True,
        "additional_special_tokens": ["[E1]"],
    },
    "bert file": {"tokenizer": bert(), "do_lower_case": True} | OF_BERT,
    "changed file": {"tokenizer": bert(), "do_lower_case": False} | OF_BERT,
    "course": {"tokenizer": course_like()} | OF_FILE,
    "short words": {"tokenizer": short_words()} | OF_FILE,
    "prefix": {"tokenizer": other_prefix()} | OF_FILE,
    "bpe": {"tokenizer": bpe()} | OF_FILE,
    "unigram": {"tokenizer": unigram()} | OF_FILE,
    "file with added": {"tokenizer": with_added()} | OF_FILE,
}


@pytest.mark.parametrize("name", DIRECTORIES)
def test_ids_equal_those_of_transformers(name, tmp_path):
    transformers = pytest.importorskip("transformers")
    write(tmp_path, **DIRECTORIES[name])
    ours = open_in(tmp_path)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    for text, found in zip(TEXTS, ours.encoder()(TEXTS), strict=True):
        expected = theirs(text, add_special_tokens=False)["input_ids"]
        assert found.tolist() == expected, text
        assert ours.locator()(text).ids.tolist() == expected
    row = theirs("cat", "the cat")["input_ids"]
    cls, sep = ours.id("[CLS]"), ours.id("[SEP]")
    a, b = ours.encoder()(["cat", "the cat"])
    assert row == [cls, *a, sep, *b, sep]


@pytest.mark.parametrize("name", DIRECTORIES)
def test_tokenizer_is_written_and_read_again(name, tmp_path):
    """As in the directory of a model that was fine-tuned from this one."""
    write(tmp_path, **DIRECTORIES[name])
    before = open_in(tmp_path)
    after = tmp_path / "after"
    after.mkdir()
    huggingface_write.build_tokenizer(before).save(str(after / "tokenizer.json"))
    settings = huggingface_write.tokenizer_config(64, before)
    (after / "tokenizer_config.json").write_text(json.dumps(settings))
    found = open_in(after)
    for ids, expected in zip(
        found.encoder()(TEXTS), before.encoder()(TEXTS), strict=True
    ):
        assert ids.tolist() == expected.tolist()


def test_our_own_files_are_read_by_our_own_tokenizer(tmp_path):
    ours = WordPiece(VOCAB, True)
    settings = huggingface_write.tokenizer_config(64, ours)
    write(tmp_path, huggingface_write.build_tokenizer(ours), VOCAB, **settings)
    assert open_in(tmp_path) == ours
    (tmp_path / "vocab.txt").unlink()
    assert open_in(tmp_path) == ours


def test_vocabulary_without_mask_gets_none(tmp_path):
    vocab = [token for token in VOCAB if token != "[MASK]"]
    write(tmp_path, vocab=vocab, do_lower_case=True)
    ours = open_in(tmp_path)
    assert len(ours.vocab) == len(vocab)
    built = huggingface_write.build_tokenizer(ours)
    assert built.get_vocab_size() == len(vocab)
    assert "mask_token" not in huggingface_write.tokenizer_config(64, ours)


JAPANESE = {"tokenizer_class": "BertJapaneseTokenizer", "word_tokenizer_type": "mecab"}
ONE, OF_TEXT = {"tokenizer": bert()}, {"vocab": VOCAB}
OTHER_LINES = {"vocab": (*VOCAB[:-2], "dog", "E1")}


@pytest.mark.parametrize(
    "directory, message",
    [
        (OF_TEXT | JAPANESE, "the tokenizer BertJapaneseTokenizer with mecab;"),
        (ONE | JAPANESE, "BertJapaneseTokenizer with mecab; only"),
        (
            OF_TEXT | {"tokenizer_class": "RobertaTokenizerFast"},
            "RobertaTokenizerFast;",
        ),
        (OF_TEXT | OF_FILE, "PreTrainedTokenizerFast with a tokenizer.json"),
        (OF_TEXT | {"do_basic_tokenize": False}, "do_basic_tokenize=False"),
        (OF_TEXT | {"never_split": ["cat"]}, "never_split="),
        (OF_TEXT | {"cls_token": "<s>"}, "cls_token='<s>'; only"),
        (OF_TEXT | {"mask_token": {"content": "<m>"}}, "mask_token=.*<m>.*; only"),
        (OF_TEXT | {"do_lower_case": "yes"}, "do_lower_case='yes'; download"),
        (
            OF_TEXT | {"model_input_names": ["input_ids"]},
            "=.*token_type_ids are not su",
        ),
        (OF_TEXT | {"model_input_names": 3}, "model_input_names=3; models"),
        (OF_TEXT | {"strip_accents": 1}, "strip_accents=1; download it again"),
        ({"tokenizer": course_like()} | OF_BERT, "other rules than BertTokenizer"),
        ({"tokenizer": short_words()} | OF_BERT, "other rules than BertTokenizer"),
        ({"tokenizer": bpe()}, "other rules than BertTokenizer"),
        (
            {"tokenizer": bert(do_lower_case=False)},
            "BertTokenizer with do_lower_case=True",
        ),
        (
            {"tokenizer": course_like(), "do_lower_case": False} | OF_FILE,
            "do_lower_case=False, but the normalizer of tokenizer.json has True",
        ),
        (ONE | OTHER_LINES | OF_FILE, "has 'dog', whose id in tokenizer.json is None;"),
        (
            OF_TEXT | added("7"),
            "the added token 'new' has the id 7 .*; correct the file",
        ),
        (OF_TEXT | added("x"), "added tokens are corrupt"),
    ],
)
def test_unsupported_tokenizer_is_refused(directory, message, tmp_path):
    write(tmp_path, **directory)
    with pytest.raises(ConfigError, match=message) as error:
        open_in(tmp_path)
    assert "\n" not in str(error.value)


def test_advice_about_contradicting_rules_is_right(tmp_path):
    write(tmp_path, course_like(), **OF_BERT)
    with pytest.raises(ConfigError) as error:
        open_in(tmp_path)
    assert str(error.value).endswith(
        'set "tokenizer_class": "PreTrainedTokenizerFast" in tokenizer_config.json'
    )
    change_json(tmp_path, "tokenizer_config.json", **OF_FILE)
    assert isinstance(open_in(tmp_path), LibraryTokenizer)


def test_case_is_unknown_without_a_record(tmp_path):
    write(tmp_path, vocab=VOCAB)
    opened = huggingface_tokenizer.open_tokenizer(tmp_path, {})
    assert opened is not None and opened.lowercase is None
    assert opened.build(True).lowercase and not opened.build(False).lowercase
