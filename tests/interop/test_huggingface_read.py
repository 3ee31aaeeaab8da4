"""Tests of reading Hugging Face directories: variants, keys, task heads and errors."""

import dataclasses
import inspect
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy

from bert_jax import digests
from bert_jax.errors import ConfigError
from bert_jax.finetuning.tasks import HEADS, TASKS
from bert_jax.interop import (
    huggingface_read,
    huggingface_tokenizer,
    huggingface_write,
    sentence_transformers,
)
from bert_jax.loading import model as model_lib
from tests.commands import ROOT, flip
from tests.finetuning import tuned
from tests.models import (
    VOCAB,
    assert_same,
    change_json,
    change_tensors,
    keep_only_vocab_txt,
    read,
    tensors_of,
)


def test_export_round_trips_bit_for_bit(source):
    directory, expected = source
    weights = read(directory)
    assert_same(weights.arrays, expected)
    assert weights.notes == ()


def test_sharded_bfloat16_files_with_old_names(source):
    """Reads an encoder with TensorFlow's parameter names in two files."""
    directory, expected = source
    tensors = tensors_of(directory)
    (directory / "model.safetensors").unlink()
    parts = ({}, {}), {}
    for i, (name, array) in enumerate(sorted(tensors.items())):
        if not name.startswith("bert."):
            continue
        name = name.removeprefix("bert.")
        name = name.replace("LayerNorm.weight", "LayerNorm.gamma")
        name = name.replace("LayerNorm.bias", "LayerNorm.beta")
        parts[0][i % 2][name] = array.astype(ml_dtypes.bfloat16)
        parts[1][name] = f"part-{i % 2}.safetensors"
    parts[0][0]["embeddings.position_ids"] = np.arange(32)[None]
    parts[1]["embeddings.position_ids"] = "part-0.safetensors"
    for i in range(2):
        safetensors.numpy.save_file(parts[0][i], directory / f"part-{i}.safetensors")
    index = directory / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": parts[1]}))
    weights = read(directory)
    encoder = {
        name: array.astype(ml_dtypes.bfloat16).astype(np.float32)
        for name, array in expected.items()
        if name.startswith("bert.")
    }
    assert_same(weights.arrays, encoder)
    (note,) = weights.notes
    assert note.startswith("missing, initialized randomly: ") and "and 4 more" in note


def test_model_in_the_hugging_face_cache(source, tmp_path):
    directory, expected = source
    snapshot = tmp_path / "models--a--b" / "snapshots" / "1234"
    blobs = tmp_path / "models--a--b" / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    for i, path in enumerate(sorted(directory.iterdir())):
        path.rename(blobs / str(i))
        (snapshot / path.name).symlink_to(blobs / str(i))
    assert_same(read(snapshot).arrays, expected)


def test_unused_tensors_are_not_judged(source):
    """A task that has no masked-LM head needs no tied decoder, and floats only."""
    directory, expected = source
    word = tensors_of(directory)["bert.embeddings.word_embeddings.weight"]
    change_json(directory, "config.json", tie_word_embeddings=False)
    change_tensors(
        directory,
        cls__predictions__decoder__weight=word + 1,
        num_batches_tracked=np.array(7),
        bert__embeddings__token_type_ids=np.zeros((1, 32), np.int64),
    )
    found = model_lib.read_encoder(str(directory))
    assert found.notes == ("unused tensors: num_batches_tracked",)
    assert_same(found.arrays, {name: expected[name] for name in found.arrays})
    with pytest.raises(ConfigError, match="tie_word_embeddings=False; only"):
        model_lib.read_encoder(str(directory), has_masked_lm=True)


def test_vocabulary_in_tokenizer_json_or_nowhere(source):
    directory, expected = source
    (directory / "vocab.txt").unlink()
    weights = read(directory)
    assert_same(weights.arrays, expected)
    assert weights.notes == ()
    (directory / "tokenizer.json").unlink()
    _, note = read(directory).notes
    assert note == "no vocab.txt to compare the vocabulary with"


def test_equivalent_activations_are_accepted(source):
    for name, ours in huggingface_read.SAME_ACTIVATION.items():
        change_json(source[0], "config.json", hidden_act=name)
        assert huggingface_read.open_source(source[0]).sizes["hidden_act"] == ours


def test_decoder_bias_under_its_older_name(source):
    directory, expected = source
    bias = tensors_of(directory)["cls.predictions.bias"]
    for name, array in (("decoder.bias", bias), ("bias", None)):
        change_tensors(directory, **{f"cls.predictions.{name}": array})
        assert_same(read(directory).arrays, expected)


INDEX = "model.safetensors.index.json"
WORD = "bert.embeddings.word_embeddings.weight"
POSITION = "bert.embeddings.position_embeddings.weight"
DECODER, BIAS = "cls.predictions.decoder", "cls.predictions.bias"
OUTPUT = "bert.encoder.layer.1.output.dense.bias"


def tensor(name, change):
    """Returns a function that sets a tensor, given the others; None removes it."""
    return lambda directory: change_tensors(
        directory, **{name: change(tensors_of(directory))}
    )


def zeros(shape, value=0.0):
    return lambda _: np.full(shape, value, np.float32)


def config(**values):
    """Returns a function that changes config.json."""
    return lambda directory: change_json(directory, "config.json", **values)


def index(parts):
    """Returns a function that puts an index in the place of the weights."""

    def harm(directory):
        (directory / "model.safetensors").rename(directory / "part.safetensors")
        (directory / INDEX).write_text(json.dumps(parts))

    return harm


def tokenizer_json(**model):
    """Returns a function that leaves only tokenizer.json, with a changed model."""

    def harm(directory):
        (directory / "vocab.txt").unlink()
        path = directory / "tokenizer.json"
        value = json.loads(path.read_text())
        value["model"] |= model
        path.write_text(json.dumps(value))

    return harm


def fewer_positions(directory):
    tensor(POSITION, lambda x: np.concatenate([x[POSITION]] * 2))(directory)
    config(max_position_embeddings=64)(directory)


def lead_outside_by_link(directory):
    outside = directory.parent / "outside"
    shutil.move(directory / "model.safetensors", outside)
    (directory / "model.safetensors").symlink_to(outside)


def flip_a_bit(directory):
    digests.write_sums(directory)
    flip(directory / "model.safetensors")


def declare_too_large_a_shape(directory):
    header = {"a": {"dtype": "F32", "shape": [10**9, 10**9], "data_offsets": [0, 4]}}
    text = json.dumps(header).encode()
    content = len(text).to_bytes(8, "little") + text + b"0000"
    (directory / "model.safetensors").write_bytes(content)


def write(name, text):
    return lambda directory: (directory / name).write_text(text)


def leave_a_pickle(directory):
    (directory / "model.safetensors").rename(directory / "pytorch_model.bin")


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (tensor(f"{DECODER}.weight", lambda x: x[WORD] + 1), "differs from 'bert.emb"),
        (tensor(f"{DECODER}.bias", lambda x: x[BIAS] + 1), "differs from 'cls.pred"),
        (tensor("bert.embeddings.LayerNorm.gamma", zeros(32)), "keep one of the two"),
        (
            tensor("bert.pooler.dense.bias", zeros(32, np.nan)),
            "NaN or infinity in bert",
        ),
        (tensor(POSITION, zeros((0, 32))), r"1 tensor.*position is \[0, 32\]"),
        (tensor(POSITION, zeros(1024)), r"position is \[1024\], expected \[32, 32\]"),
        (tensor(OUTPUT, lambda _: None), "lacks 1 of .*: bert.layers.1.output.bias"),
        (tensor(BIAS, zeros(96)), "has 97 tokens, but .* has 96 rows for them"),
        (
            tensor("bert.pooler.dense.weight", lambda _: np.eye(32, dtype="i1")),
            "pooler.dense.weight' as I8; save it as one of F64, F32",
        ),
        (fewer_positions, "max_position_embeddings=32, but .* has 64; set the key to"),
        (config(vocab_size=10**9), "vocab_size=1000000000, but its table has 97"),
        (config(vocab_size="x"), "vocab_size='x', but its table has 97"),
        (
            config(hidden_size=10**9),
            r"config.model.hidden_size=32 \(the model has 1000000000\)",
        ),
        (
            write("config.json", '{"model_type": "bert"}'),
            r"hidden_act='gelu_new' \(the model has 'gelu'\), .*"
            r"hidden_size=32 \(the model has 768\)",
        ),
        (config(max_position_embeddings=-5), "embeddings=-5 must be at least 1"),
        (config(tie_word_embeddings=False), "tie_word_embeddings=False; only True is"),
        (write("config.json", "{"), "config.json is not a JSON object"),
        (
            lambda directory: (directory / "config.json").unlink(),
            "has no config.json; use a directory of",
        ),
        (
            lambda directory: os.truncate(directory / "config.json", 2**26 + 1),
            "config.json is larger than 64 MiB",
        ),
        (
            tokenizer_json(vocab={t: i + (i > 50) for i, t in enumerate(VOCAB)}),
            "has 98 tokens, but .* has 97 rows for them",
        ),
        (
            tokenizer_json(vocab={t: i - (i == 96) for i, t in enumerate(VOCAB)}),
            "tokenizer.json gives two tokens the same id",
        ),
        (
            tokenizer_json(
                vocab={t if t != "w3" else "\ud800": i for i, t in enumerate(VOCAB)}
            ),
            "tokenizer.json is not a tokenizer that the",
        ),
        (
            write("vocab.txt", "\n".join(VOCAB[::-1])),
            "vocab.txt:.* whose id in tokenizer.json is",
        ),
        (
            lambda directory: change_json(
                directory, "tokenizer_config.json", do_lower_case=False
            ),
            "has do_lower_case=False, but the normalizer of tokenizer.json has",
        ),
        (index({"weight_map": {"a": 7}}), "has no weight_map of files"),
        (index({"weight_map": {"a": "x.safetensors"}}), "x.safetensors is missing"),
        (index({"weight_map": {"a": "../x"}}), "points outside of its directory"),
        (
            index({"weight_map": {"a": "part.safetensors"}}),
            "part.safetensors lacks 'a'; download it again",
        ),
        (
            lambda directory: os.truncate(directory / "model.safetensors", 5000),
            "model.safetensors is corrupt",
        ),
        (declare_too_large_a_shape, "model.safetensors is corrupt"),
        (leave_a_pickle, "pytorch_model.bin is a pickle.*convert it"),
        (lead_outside_by_link, "is a link to .*outside of its directory"),
        (flip_a_bit, "model.safetensors does not match its digest; download"),
    ],
)
def test_invalid_directory_is_rejected(directory, harm, message):
    harm(directory)
    with pytest.raises(ConfigError, match=message):
        read(directory)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["BertForSequenceClassification", "BertModel"])
def test_a_pickle_keeps_its_heads_when_the_advice_is_followed(tmp_path, name):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    sizes = {"num_hidden_layers": 1, "hidden_size": 8, "num_attention_heads": 2}
    config = transformers.BertConfig(vocab_size=9, intermediate_size=8, **sizes)
    model = getattr(transformers, name)(config)
    model.save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\nb\n")
    with pytest.raises(ConfigError) as error:
        read(tmp_path)
    _, program, _ = str(error.value).split('"')
    target = tmp_path / "converted"
    program = program.replace("NEW_DIRECTORY", str(target))
    subprocess.run([sys.executable, "-c", program], check=True)
    weights = safetensors.numpy.load_file(target / "model.safetensors")
    assert weights.keys() == model.state_dict().keys()


PATH = Path("there/config.json")


@pytest.mark.parametrize("kind", TASKS)
def test_head_round_trips_through_config_json(kind, tmp_path):
    head = tuned.HEADS[kind]
    sentence_transformers.write(tmp_path, 32, 32)  # marks a dual encoder
    path = tmp_path / "config.json"
    assert (
        huggingface_read.parse_head(huggingface_write.head_keys(head), path, HEADS)
        == head
    )


@pytest.mark.parametrize(
    "labels, kind", [({"0": "score"}, "regression"), (None, "classification")]
)
def test_problem_type_is_inferred_from_the_number_of_labels(labels, kind):
    config = {"architectures": ["BertForSequenceClassification"]}
    config |= {"id2label": labels} if labels else {}
    head = huggingface_read.parse_head(
        config | {"hidden_dropout_prob": 0.2}, PATH, HEADS
    )
    assert head.type.kind == kind and head.dropout_prob == 0.2
    # A missing key has the default of transformers' BertConfig.
    config.pop("hidden_dropout_prob", None)
    assert huggingface_read.parse_head(config, PATH, HEADS).dropout_prob == 0.1
    assert head.labels == (("score",) if labels else ("LABEL_0", "LABEL_1"))
    config = {"architectures": ["BertForTokenClassification"], "num_labels": 3}
    assert len(huggingface_read.parse_head(config, PATH, HEADS).labels) == 3


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"architectures": ["BertForPreTraining"]}, "has no task head"),
        ({"architectures": ["BertModel"]}, "has no task head"),
        ({"architectures": None}, "not a supported fine-tuned BERT"),
        ({"problem_type": "guessing"}, "not a supported fine-tuned BERT"),
        ({"id2label": {"0": "a", "2": "b"}}, "id2label"),
        ({"id2label": 3}, "id2label"),
        ({"id2label": None, "num_labels": "many"}, "num_labels='many'"),
        ({"classifier_dropout": 1.5}, "dropout of 1.5"),
        ({"classifier_dropout": "much"}, "dropout of 'much'"),
    ],
)
def test_unsupported_head_is_an_error(changes, words):
    config = huggingface_write.head_keys(tuned.HEADS["classification"]) | changes
    with pytest.raises(ConfigError, match=words):
        huggingface_read.parse_head(config, PATH, HEADS)


def test_defaults_equal_those_of_transformers():
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig()
    found = {key: getattr(config, key) for key in huggingface_read.DEFAULTS}
    assert found == huggingface_read.DEFAULTS


PAGE = (ROOT / "docs" / "export.md").read_text()


def effects(file):
    """Returns {effect: keys} of the table in docs/export.md."""
    text = PAGE.partition(f"\n### {file}\n")[2].partition("\n#")[0]
    found = {"read": set(), "refused": set(), "no effect": set()}
    for key, effect in re.findall(r"^\| `(\w+)` \| ([a-z ]+) \|", text, re.M):
        found[effect].add(key)
    return found


CONFIG, SETTINGS = effects("config.json"), effects("tokenizer_config.json")
FIXED = [
    (name, key, only)
    for name, fixed in (
        ("config.json", huggingface_read.FIXED),
        ("tokenizer_config.json", huggingface_tokenizer.FIXED),
    )
    for key, only in fixed.items()
]


def test_every_key_of_a_bert_config_is_in_the_page():
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig
    known = {field.name for field in dataclasses.fields(config)}
    known |= config().to_dict().keys() | {"output_attentions", "per_layer_config"}
    assert known <= set().union(*CONFIG.values())
    assert CONFIG["refused"] == huggingface_read.FIXED.keys()


def test_every_key_of_a_bert_tokenizer_is_in_the_page():
    pytest.importorskip("transformers")
    from transformers import tokenization_utils_base
    from transformers.models.bert import tokenization_bert, tokenization_bert_legacy

    known = {"backend"}
    for kind in (
        tokenization_bert.BertTokenizer,
        tokenization_bert_legacy.BertTokenizerLegacy,
    ):
        known |= inspect.signature(kind.__init__).parameters.keys()
    base = tokenization_utils_base.PreTrainedTokenizerBase
    known |= set(base.SPECIAL_TOKENS_ATTRIBUTES)
    # __init__ takes its other keys from a dictionary.
    source = inspect.getsource(base.__init__)
    known |= set(re.findall(r'kwargs\.pop\(\s*"(\w+)"', source))
    arguments = {"self", "kwargs", "vocab", "vocab_file", "files_loaded"}
    arguments |= {"model_specific_special_tokens"}  # built from other keys
    assert known - arguments - set().union(*SETTINGS.values()) == set()
    assert SETTINGS["refused"] == huggingface_tokenizer.FIXED.keys()


@pytest.mark.parametrize(("name", "key", "only"), FIXED)
def test_another_value_of_a_fixed_key_is_refused(directory, name, key, only):
    assert f"| `{key}` | refused | unless `{only!r}` |" in PAGE
    value = {False: True, None: {"a": 1}, True: False}.get(only, "other")
    change_json(directory, name, **{key: value})
    with pytest.raises(ConfigError, match=f"{name} has {key}="):
        model_lib.read_encoder(str(directory))


def test_ignored_keys_change_nothing(directory):
    keep_only_vocab_txt(directory, VOCAB)
    before = model_lib.read_encoder(str(directory))
    change_json(directory, "config.json", **dict.fromkeys(CONFIG["no effect"], 7))
    ignored = dict.fromkeys(SETTINGS["no effect"], "7")
    change_json(directory, "tokenizer_config.json", **ignored)
    after = model_lib.read_encoder(str(directory))
    assert (after.config, after.tokenizer) == (before.config, before.tokenizer)
    np.testing.assert_equal(after.arrays, before.arrays)
