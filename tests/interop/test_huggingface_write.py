"""Tests that exported tokenizers give the ids of training."""

import jax
import pytest

from bert_jax import config as config_lib
from bert_jax.data.tokenizers import training
from bert_jax.interop import huggingface_write
from bert_jax.model import bert
from tests.conftest import make_config

LINES = [
    "The river follows the old garden.",
    "naïve CAFÉ -- 12% of \u4e2d\u6587, isn't it?",
    "a" * 150 + " " + "b" * 250,
    "",
    "Wait -- ------- no...... (1,000,000)",
    "\uff21\uff22 e\u0301 \U0001f600\U0001f601 \u200b|",
    " two  spaces \u00a0 and\ttabs ",
    "ΟΔΟΣ İstanbul \ue000 ﬁ ß \u0e01\u0e33",
]


VOCAB_SIZE = 160


@pytest.fixture(scope="module", params=config_lib.TOKENIZER_KINDS)
def tokenizer(request):
    texts = [[f"{line} {i} - ----- {i * 7919}."] for i in range(50) for line in LINES]
    config = make_config(
        tokenizer__kind=request.param, tokenizer__vocab_size=VOCAB_SIZE
    )
    return training.train(texts, config.tokenizer)


def write(directory, tokenizer, **changes):
    config = make_config(**changes)
    _, params = bert.build(config.model, VOCAB_SIZE, jax.random.key(0))
    huggingface_write.write(directory, params, config, tokenizer)


def test_ids_equal_ours_between_cls_and_sep(tokenizer):
    built = huggingface_write.build_tokenizer(tokenizer)
    encode = tokenizer.encoder()
    cls, sep = tokenizer.id("[CLS]"), tokenizer.id("[SEP]")
    for line in LINES:
        assert built.encode(line).ids == [cls, *encode([line])[0], sep]
    pair = built.encode(LINES[0], LINES[1])
    assert pair.type_ids.count(1) == len(encode([LINES[1]])[0]) + 1


def test_transformers_reads_the_same_ids(tokenizer, tmp_path):
    transformers = pytest.importorskip("transformers")
    write(tmp_path, tokenizer)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    ours = huggingface_write.build_tokenizer(tokenizer)
    for line in LINES:
        assert theirs(line)["input_ids"] == ours.encode(line).ids
    assert theirs.mask_token_id == tokenizer.id("[MASK]")
    assert theirs("a [MASK] b")["input_ids"].count(theirs.mask_token_id) == 1
    assert theirs.decode(theirs("the garden")["input_ids"][1:-1]) == "the garden"
    assert theirs.model_max_length == 32
