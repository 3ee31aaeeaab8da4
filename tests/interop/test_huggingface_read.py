"""Tests of reading Hugging Face directories: accepted variants and errors."""

import json
import os
import shutil

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy

from bert_jax import digests, errors
from bert_jax.loading import model
from tests.models import (
    VOCAB,
    assert_same,
    change_json,
    change_tensors,
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
    found = model.read_encoder(str(directory))
    assert found.notes == ("unused tensors: num_batches_tracked",)
    assert_same(found.arrays, {name: expected[name] for name in found.arrays})
    with pytest.raises(errors.ConfigError, match="tie_word_embeddings=False; only"):
        model.read_encoder(str(directory), has_masked_lm=True)


def test_vocabulary_in_tokenizer_json_or_nowhere(source):
    directory, expected = source
    (directory / "vocab.txt").unlink()
    weights = read(directory)
    assert_same(weights.arrays, expected)
    assert weights.notes == ()
    (directory / "tokenizer.json").unlink()
    _, note = read(directory).notes
    assert note == "no vocab.txt to compare the vocabulary with"


def test_equivalent_activation_is_accepted(source):
    directory, expected = source
    change_json(directory, "config.json", hidden_act="gelu_pytorch_tanh")
    assert_same(read(directory).arrays, expected)


def test_decoder_bias_under_its_older_name(source):
    directory, expected = source
    tensors = tensors_of(directory)
    tensors["cls.predictions.decoder.bias"] = tensors["cls.predictions.bias"]
    safetensors.numpy.save_file(tensors, directory / "model.safetensors")
    assert_same(read(directory).arrays, expected)
    del tensors["cls.predictions.bias"]
    safetensors.numpy.save_file(tensors, directory / "model.safetensors")
    assert_same(read(directory).arrays, expected)


INDEX = "model.safetensors.index.json"
WORD = "bert.embeddings.word_embeddings.weight"
POSITION = "bert.embeddings.position_embeddings.weight"
DECODER, BIAS = "cls.predictions.decoder", "cls.predictions.bias"
OUTPUT = "bert.encoder.layer.1.output.dense.bias"


def tensor(name, change):
    """Returns a function that sets a tensor, given the others; None removes it."""

    def harm(directory):
        found = tensors_of(directory)
        found[name] = change(found)
        found = {name: array for name, array in found.items() if array is not None}
        safetensors.numpy.save_file(found, directory / "model.safetensors")

    return harm


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


def lead_outside_by_link(directory):
    outside = directory.parent / "outside"
    shutil.move(directory / "model.safetensors", outside)
    (directory / "model.safetensors").symlink_to(outside)


def flip_a_bit(directory):
    digests.write_sums(directory)
    path = directory / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


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
        (
            config(max_position_embeddings=-5),
            r"position is \[32, 32\], expected \[-5, 32\]",
        ),
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
def test_invalid_directory_is_rejected(source, harm, message):
    directory, _ = source
    harm(directory)
    with pytest.raises(errors.ConfigError, match=message):
        read(directory)
