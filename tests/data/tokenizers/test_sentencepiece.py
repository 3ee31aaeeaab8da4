"""Tests of bert_jax.data.tokenizers.sentencepiece."""

import functools
import io
import random

import numpy as np
import pytest
import sentencepiece
from sentencepiece import sentencepiece_model_pb2 as model_pb2

from bert_jax.data.tokenizers import base, training
from bert_jax.data.tokenizers import sentencepiece as sentencepiece_lib
from bert_jax.errors import ConfigError
from tests.data.tokenizers import test_wordpiece
from tests.data.tokenizers.test_training import chinese

SPECIAL = list(base.SPECIAL_TOKENS)
KINDS = ["sentencepiece_unigram", "sentencepiece_bpe"]
make_config = functools.partial(test_wordpiece.make_config, vocab_size=120)


def documents(seed=0):
    rng = random.Random(seed)
    words = ["".join(rng.choices("abcdefgh-", k=rng.randint(2, 7))) for _ in range(300)]
    words += ["Caf\u00e9", "12,000", "--", "---", "\u4f60\u597d", "\u3042\u308a"]
    return [
        [" ".join(rng.choices(words, k=12)) + rng.choice(".!?") for _ in range(5)]
        for _ in range(60)
    ]


LINES = [
    *(sentence for document in documents(seed=1) for sentence in document[:2]),
    "",
    " \t ",
    "[MASK] and [SEP] in text [CLS][PAD] <unk> [UNK]",
    "##a \u2581a a\u2581b \u2581",
    "  spaces   between \u00a0\u3000 and after  ",
    "caf\u00e9 cafe\u0301 \uff21\uff22 \u2460 \ufb01 \u00df \u1e9e \u0130 \u039f\u03a3",
    "see <url> now, <url><url> x@user @username a.b aab the cat.",
    "never seen: \U0001f600\U0001f601 \u0e01\u0e33 \u0645\u0631",
    "a\x00b a\x0bb a\u200bb a\ufffdb a\u00adb a\u2028b",
    *("-" * n for n in range(1, 40)),
    *("- " * n + "a" * n for n in range(1, 20)),
]


@pytest.fixture(scope="module", params=KINDS)
def tokenizer(request):
    return training.train(documents(), make_config(request.param))


def encode(tokenizer, text):
    return [tokenizer.vocab[i] for i in tokenizer.encoder()([text])[0]]


def train_elsewhere(kind, **options):
    """Trains a model as other software does, by default without BERT's tokens."""
    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=(sentence for d in documents() for sentence in d),
        model_writer=written,
        minloglevel=2,
        **{"model_type": kind.removeprefix("sentencepiece_"), "vocab_size": 120}
        | options,
    )
    return written.getvalue()


# ---------------------------------------------------------------- text -> pieces


def test_special_tokens_come_first_and_text_never_becomes_one(tokenizer):
    assert list(tokenizer.vocab[:5]) == SPECIAL
    ids = np.concatenate(tokenizer.encoder()(LINES))
    assert not set(ids) & {tokenizer.id(t) for t in SPECIAL if t != "[UNK]"}
    assert tokenizer.id("[UNK]") in ids


def test_ids_of_each_sentence(tokenizer):
    processor = sentencepiece.SentencePieceProcessor(model_proto=tokenizer.model)
    encoded = tokenizer.encoder()(LINES)
    assert all(ids.dtype == np.int32 for ids in encoded)
    assert [ids.tolist() for ids in encoded] == [processor.encode(x) for x in LINES]
    assert encoded[LINES.index("")].tolist() == []


def test_lowercase_is_part_of_the_model(tokenizer):
    assert encode(tokenizer, "CAF\u00c9 ABC") == encode(tokenizer, "caf\u00e9 abc")
    kept = training.train(
        documents(), make_config(KINDS[0], lowercase=False, vocab_size=150)
    )
    assert not kept.lowercase
    assert encode(kept, "CAF\u00c9") != encode(kept, "caf\u00e9")


def test_continues_word_marks_the_pieces_inside_words(tokenizer):
    found = tokenizer.continues_word
    assert found.dtype == bool and found.shape == (len(tokenizer.vocab),)
    special = [tokenizer.vocab[i] for i in np.flatnonzero(found[: len(SPECIAL)])]
    assert special == ["[UNK]"]
    lines = [*LINES[:40], "abc \u4e00 x\u4e00y \u4e00\u4e01z def"]  # has [UNK]
    assert tokenizer.id("[UNK]") in tokenizer.encoder()(lines[-1:])[0]
    for line in lines:
        ids = tokenizer.encoder()([line])[0]
        assert (~found[ids]).sum() == len(line.split())


# --------------------------------------------------------------------- the export


def test_exported_pipeline_gives_the_same_ids(tokenizer):
    exported = tokenizer.huggingface()
    for line, ids in zip(LINES, tokenizer.encoder()(LINES), strict=True):
        # The pipeline would match the literal text of special tokens.
        if "[" not in line:
            assert exported.encode(line).ids == ids.tolist(), ascii(line)
    text = exported.decode(tokenizer.encoder()(["abc def"])[0].tolist())
    assert text == "abc def"


def test_scores_add_up_exactly():
    """Exact sums are why ties between pieces do not depend on rounding."""
    tokenizer = training.train(documents(), make_config(KINDS[0]))
    model = model_pb2.ModelProto.FromString(tokenizer.model)
    scores = np.array([piece.score for piece in model.pieces])
    assert scores.min() > -32 and np.array_equal(scores * 256, np.rint(scores * 256))
    runs = np.repeat(scores.min(), 2048)
    assert np.cumsum(runs, dtype=np.float32)[-1] == np.cumsum(runs)[-1]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "options",
    [
        {"add_dummy_prefix": False},
        {"remove_extra_whitespaces": False},
        {"byte_fallback": True, "vocab_size": 400},
        {"split_by_whitespace": False},
        {"normalization_rule_name": "identity"},
        {"user_defined_symbols": ["<url>", "@user", "@u", "the cat", "a.b"]},
    ],
)
def test_models_of_other_software_are_exported_unchanged(kind, options):
    content = train_elsewhere(kind, **options)
    config = make_config(kind, lowercase=False)
    tokenizer = sentencepiece_lib.read(content, config, "m")
    exported = tokenizer.huggingface()
    lines = [line for line in LINES if "[" not in line and "--" not in line]
    if options == {"normalization_rule_name": "identity"}:
        # The library treats a word mark at the end of such a text as white space.
        lines = [line for line in lines if not line.endswith("\u2581")]
    for line, ids in zip(lines, tokenizer.encoder()(lines), strict=True):
        assert exported.encode(line).ids == ids.tolist(), ascii(line)


# -------------------------------------------------------------------- read a file


@pytest.mark.parametrize("kind", KINDS)
def test_missing_special_tokens_are_appended(kind):
    content = train_elsewhere(kind)
    before = sentencepiece.SentencePieceProcessor(model_proto=content)
    config = make_config(kind, lowercase=False)
    tokenizer = sentencepiece_lib.read(content, config, "m")
    assert before.id_to_piece(0) == "<unk>" and tokenizer.vocab[0] == "[UNK]"
    assert tokenizer.vocab[120:] == ("[PAD]", "[CLS]", "[SEP]", "[MASK]")
    for line, ids in zip(LINES, tokenizer.encoder()(LINES), strict=True):
        assert ids.tolist() == before.encode(line)
    assert sentencepiece_lib.read(tokenizer.model, config, "m") == tokenizer


def test_user_defined_special_tokens_become_control_pieces():
    content = train_elsewhere(KINDS[0], user_defined_symbols=["[MASK]", "[UNK]"])
    before = sentencepiece.SentencePieceProcessor(model_proto=content)
    assert before.piece_to_id("[MASK]") in before.encode("a [MASK] b")
    tokenizer = sentencepiece_lib.read(
        content, make_config(KINDS[0], lowercase=False), "m"
    )
    assert tokenizer.vocab.index("[MASK]") == before.piece_to_id("[MASK]")
    assert "[MASK]" not in encode(tokenizer, "a [MASK] b")


@pytest.mark.parametrize(
    "content", [b"", b"\x00", b"[PAD]\n[UNK]\n", b"\xff" * 100, bytes(range(256))]
)
def test_a_file_that_is_not_a_model(content):
    with pytest.raises(ConfigError, match="^here.model is not a SentencePiece model"):
        sentencepiece_lib.read(content, make_config(KINDS[0]), "here.model")


@pytest.mark.parametrize(
    "found, config, message",
    [
        ("unigram", make_config(KINDS[1]), "set config.tokenizer.kind=sentencepiece_u"),
        ("bpe", make_config(KINDS[0]), "set config.tokenizer.kind=sentencepiece_bpe"),
        ("char", make_config(KINDS[0]), "'sentencepiece_unigram', but m is a model of"),
        ("bpe", make_config(KINDS[1]), "set config.tokenizer.lowercase=False"),
    ],
)
def test_a_model_of_another_kind_or_case(found, config, message):
    size = {"vocab_size": 30} if found == "char" else {}
    content = train_elsewhere(found, **size)
    with pytest.raises(ConfigError, match=message):
        sentencepiece_lib.read(content, config, "m")


def test_kind_of_a_file(tokenizer):
    kind = sentencepiece_lib.kind(tokenizer.content(), "here")
    assert kind in KINDS
    assert sentencepiece_lib.read(tokenizer.content(), make_config(kind), "here")
    with pytest.raises(ConfigError, match="here is not a .* unigram or BPE model"):
        sentencepiece_lib.kind(b"\xff no model", "here")


def test_a_model_that_marks_the_ends_of_words_is_an_error():
    content = train_elsewhere(KINDS[0], treat_whitespace_as_suffix=True)
    with pytest.raises(ConfigError, match="m marks the ends of words"):
        sentencepiece_lib.read(content, make_config(KINDS[0]), "m")


# -------------------------------------------------------------------------- train


def test_training_twice_gives_the_same_bytes(tokenizer):
    kind = sentencepiece_lib.kind(tokenizer.content(), "m")
    assert len(tokenizer.vocab) == 120
    assert training.train(documents(), make_config(kind)).model == tokenizer.model


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "size, message", [(5000, "set it to \\d+ or less"), (12, "no room for the .*; set")]
)
def test_a_size_that_does_not_fit_the_text(kind, size, message):
    config = make_config(kind, vocab_size=size)
    with pytest.raises(ConfigError, match=f"vocab_size={size} .*{message}"):
        training.train([["ab cd ef gh, ij."], ["kl mn op"]], config)


@pytest.mark.parametrize("kind", KINDS)
def test_more_characters_than_there_is_room_for(kind):
    text = chinese(50_000)
    model = training.train([text], make_config(kind, vocab_size=2900))
    assert len(model.vocab) == 2900
    ids = np.concatenate(model.encoder()(text))
    assert 0.001 < np.mean(ids == model.id("[UNK]")) < 0.03


def test_characters_are_counted_as_the_model_normalizes_them():
    """Full-width letters, ligatures and capitals do not get pieces."""
    text = ["\uff21\uff22 \ufb01 ABC \u3000\u33a1"] * 50
    vocab = training.train([text], make_config(KINDS[1], vocab_size=17)).vocab
    assert {"a", "b", "c", "f", "i", "m", "2"} <= set(vocab)
    assert not any(c in "".join(vocab[5:]) for c in "\uff21\ufb01A\u33a1\u3000 ")


@pytest.mark.parametrize("nothing", [[], [[]], [[""], [" "]]])
def test_training_without_text_is_an_error(nothing):
    with pytest.raises(ConfigError, match="no text to train"):
        training.train(nothing, make_config(KINDS[0]))


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("pieces", (), "is not a SentencePiece model"),
        ("piece", "", "piece 9 is empty, contains NUL or has over 1000 char"),
        ("piece", "a\0b", "piece 9 is empty, contains NUL or has over 1000 char"),
        ("piece", "a" * 10**5, "piece 9 is empty, contains NUL or has over 1000 char"),
        ("score", float("nan"), "piece 9 has the score nan"),
        ("type", 2, "it has 2 unknown pieces"),
        ("table", b"\xff\xff\xff\x7f", "its normalization table is corrupt"),
    ],
)
def test_a_crafted_model_never_reaches_the_library(
    tokenizer, field, value, message, monkeypatch
):
    monkeypatch.setattr(sentencepiece, "SentencePieceProcessor", None)
    model = model_pb2.ModelProto.FromString(tokenizer.model)
    spec = model.normalizer_spec
    if field == "pieces":
        del model.pieces[:]
    elif field == "table":
        spec.precompiled_charsmap = value + spec.precompiled_charsmap[4:]
    else:
        setattr(model.pieces[9], field, value)
    kind = KINDS[model.trainer_spec.model_type - 1]
    with pytest.raises(ConfigError, match=f"p.model.*{message}"):
        sentencepiece_lib.read(model.SerializeToString(), make_config(kind), "p.model")
