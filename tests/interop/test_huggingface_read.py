"""Tests of reading Hugging Face directories: accepted variants and errors."""

import json
import os
import shutil

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy

from bert_jax import errors
from bert_jax.interop import files
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


def test_unused_tensors_are_reported(source):
    directory, _ = source
    tensors = tensors_of(directory) | {"classifier.weight": np.zeros((3, 32))}
    safetensors.numpy.save_file(tensors, directory / "model.safetensors")
    assert read(directory).notes == ("unused tensors: classifier.weight",)


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
        model.read_masked_lm(str(directory))


def test_vocabulary_in_tokenizer_json(source):
    directory, expected = source
    (directory / "vocab.txt").unlink()
    assert_same(read(directory).arrays, expected)
    assert read(directory).notes == ()


def test_vocabulary_with_byte_order_mark_and_crlf(source):
    directory, expected = source
    content = "\ufeff" + "\r\n".join(VOCAB)
    (directory / "vocab.txt").write_bytes(content.encode())
    assert_same(read(directory).arrays, expected)


def test_missing_vocabulary_is_reported(source):
    directory, _ = source
    (directory / "vocab.txt").unlink()
    (directory / "tokenizer.json").unlink()
    _, note = read(directory).notes
    assert note == "no vocab.txt to compare the vocabulary with"


def remove_a_tensor(directory):
    tensors = tensors_of(directory)
    del tensors["bert.encoder.layer.1.output.dense.bias"]
    safetensors.numpy.save_file(tensors, directory / "model.safetensors")


def untie_the_decoder(directory):
    word = tensors_of(directory)["bert.embeddings.word_embeddings.weight"]
    change_tensors(directory, cls__predictions__decoder__weight=word + 1)


def have_a_shorter_decoder(directory):
    word = tensors_of(directory)["bert.embeddings.word_embeddings.weight"]
    change_tensors(directory, cls__predictions__decoder__weight=word[:90])


def have_two_biases(directory):
    bias = tensors_of(directory)["cls.predictions.bias"]
    change_tensors(directory, cls__predictions__decoder__bias=bias + 1)


def store_a_tensor_under_two_names(directory):
    gamma = np.zeros(32, np.float32)
    change_tensors(directory, bert__embeddings__LayerNorm__gamma=gamma)


def diverge(directory):
    change_tensors(directory, bert__pooler__dense__bias=np.full(32, np.nan, np.float32))


def empty_the_positions(directory):
    name = "bert.embeddings.position_embeddings.weight"
    change_tensors(directory, **{name: np.zeros((0, 32), np.float32)})


def have_a_huge_config(directory):
    os.truncate(directory / "config.json", 2**26 + 1)


def have_a_huge_vocabulary(directory):
    os.truncate(directory / "vocab.txt", 2**40)  # a sparse file, takes no space


def change_vocab_size(directory):
    change_json(directory, "config.json", vocab_size=10**9)


def set_negative_positions(directory):
    change_json(directory, "config.json", max_position_embeddings=-5)


def only_tokenizer_json(directory, **model):
    (directory / "vocab.txt").unlink()
    path = directory / "tokenizer.json"
    value = json.loads(path.read_text())
    value["model"] |= model
    path.write_text(json.dumps(value))


def leave_a_gap_in_ids(directory):
    ids = {token: i + (i > 50) for i, token in enumerate(VOCAB)}
    only_tokenizer_json(directory, vocab=ids)


def repeat_an_id(directory):
    ids = {token: i - (i == 96) for i, token in enumerate(VOCAB)}
    only_tokenizer_json(directory, vocab=ids)


def change_the_tokenizer_kind(directory):
    only_tokenizer_json(directory, type="Unigram")


def add_an_invalid_token(directory):
    ids = {t if t != "w3" else "\ud800": i for i, t in enumerate(VOCAB)}
    only_tokenizer_json(directory, vocab=ids)


def index_an_invalid_file_name(directory):
    (directory / "model.safetensors").unlink()
    index = directory / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "\ud800"}}))


def index_a_missing_tensor(directory):
    (directory / "model.safetensors").rename(directory / "part.safetensors")
    index = directory / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "part.safetensors"}}))


def omit_the_weights_from_sums(directory):
    files.write_digests(directory)
    path = directory / "SHA256SUMS"
    lines = [x for x in path.read_text().splitlines() if "safetensors" not in x]
    path.write_text("\n".join(lines) + "\n")


def sum_by_a_lost_link(directory):
    (directory / "SHA256SUMS").symlink_to(directory / "nothing")


def misshape_a_tensor(directory):
    tensors = tensors_of(directory)
    tensors["cls.predictions.transform.dense.bias"] = np.zeros(31, np.float32)
    safetensors.numpy.save_file(tensors, directory / "model.safetensors")


def lose_a_row(directory):
    tensors = tensors_of(directory)
    tensors["cls.predictions.bias"] = np.zeros(96, np.float32)
    safetensors.numpy.save_file(tensors, directory / "model.safetensors")


def lose_rows(directory):
    tensors = tensors_of(directory)
    names = ("bert.embeddings.word_embeddings.weight", "cls.predictions.bias")
    change_tensors(directory, **{name: tensors[name][:90] for name in names})
    change_json(directory, "config.json", vocab_size=90)


def flatten_the_positions(directory):
    tensors = tensors_of(directory)
    name = "bert.embeddings.position_embeddings.weight"
    tensors[name] = tensors[name].reshape(-1)
    safetensors.numpy.save_file(tensors, directory / "model.safetensors")


def quantise_a_tensor(directory):
    tensors = tensors_of(directory)
    name = "bert.pooler.dense.weight"
    tensors[name] = tensors[name].astype(np.int8)
    safetensors.numpy.save_file(tensors, directory / "model.safetensors")


def truncate(directory):
    path = directory / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1])


def declare_too_large_a_shape(directory):
    header = {"a": {"dtype": "F32", "shape": [10**9, 10**9], "data_offsets": [0, 4]}}
    text = json.dumps(header).encode()
    content = len(text).to_bytes(8, "little") + text + b"0000"
    (directory / "model.safetensors").write_bytes(content)


def leave_a_pickle(directory):
    (directory / "model.safetensors").rename(directory / "pytorch_model.bin")


def lead_outside_by_index(directory):
    shutil.move(directory / "model.safetensors", directory.parent / "outside")
    index = directory / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "../outside"}}))


def lead_outside_by_link(directory):
    outside = directory.parent / "outside"
    shutil.move(directory / "model.safetensors", outside)
    (directory / "model.safetensors").symlink_to(outside)


def index_nothing(directory):
    (directory / "model.safetensors").unlink()
    (directory / "model.safetensors.index.json").write_text("{}")


def index_numbers(directory):
    (directory / "model.safetensors").unlink()
    index = directory / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": 7}}))


def lose_a_part(directory):
    (directory / "model.safetensors").unlink()
    index = directory / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "part-0.safetensors"}}))


def flip_a_bit(directory):
    files.write_digests(directory)
    path = directory / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def lose_a_file(directory):
    files.write_digests(directory)
    (directory / "tokenizer.json").unlink()


def list_a_file_outside(directory):
    (directory / "SHA256SUMS").write_text("0" * 64 + "  ../outside\n")


def write_invalid_sums(directory):
    (directory / "SHA256SUMS").write_text("?\n")


def untie(directory):
    change_json(directory, "config.json", tie_word_embeddings=False)


def fewer_positions(directory):
    tensors = tensors_of(directory)
    name = "bert.embeddings.position_embeddings.weight"
    tensors[name] = np.concatenate([tensors[name]] * 2)
    safetensors.numpy.save_file(tensors, directory / "model.safetensors")
    change_json(directory, "config.json", max_position_embeddings=64)


def leave_out_sizes(directory):
    (directory / "config.json").write_text('{"model_type": "bert"}')


def change_the_vocabulary(directory):
    (directory / "vocab.txt").write_text("\n".join(VOCAB[::-1]))


def enlarge_the_config(directory):
    path = directory / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"hidden_size": 10**9}))


def another_kind(directory):
    change_json(directory, "config.json", model_type="roberta")


def relative_positions(directory):
    change_json(directory, "config.json", position_embedding_type="relative_key")


def cased(directory):
    change_json(directory, "tokenizer_config.json", do_lower_case=False)


def break_the_config(directory):
    (directory / "config.json").write_text("{")


def remove_the_config(directory):
    (directory / "config.json").unlink()


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


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (
            untie_the_decoder,
            "decoder.weight', which differs from 'bert.embeddings.word",
        ),
        (have_a_shorter_decoder, "decoder.weight', which differs from 'bert.embed"),
        (have_two_biases, "decoder.bias', which differs from 'cls.predictions.bias'"),
        (
            store_a_tensor_under_two_names,
            "repeats .*LayerNorm.weight'; keep one of the two",
        ),
        (diverge, "has NaN or infinity in bert.pooler.bias"),
        (empty_the_positions, r"1 tensor.*position is \[0, 32\]"),
        (change_vocab_size, "vocab_size=1000000000, but its table has 97"),
        (set_negative_positions, "max_position_embeddings=-5, but its table has 32"),
        (leave_a_gap_in_ids, "has 98 tokens, but .* has 97 rows for them"),
        (repeat_an_id, "tokenizer.json gives two tokens the same id"),
        (change_the_tokenizer_kind, "tokenizer.json is not a tokenizer that the"),
        (add_an_invalid_token, "tokenizer.json is not a tokenizer that the"),
        (index_an_invalid_file_name, "points outside of its directory"),
        (index_a_missing_tensor, "part.safetensors lacks 'a'; download it again"),
        (omit_the_weights_from_sums, "SHA256SUMS does not list model.safetensors"),
        (sum_by_a_lost_link, "SHA256SUMS is missing"),
        (remove_a_tensor, "lacks 1 of the model's tensors: bert.layers.1.output.bias"),
        (misshape_a_tensor, r"1 tensor.*transform.bias is \[31\], expected \[32\]"),
        (lose_a_row, "vocab.txt has 97 tokens, but .* has 96 rows for them"),
        (have_a_huge_config, "config.json is larger than 64 MiB"),
        (have_a_huge_vocabulary, "vocab.txt is larger than 64 MiB"),
        (lose_rows, "vocab.txt has 97 tokens, but .* has 90 rows for them"),
        (flatten_the_positions, r"1 tensor.*position is \[1024\], expected \[32, 32\]"),
        (quantise_a_tensor, "pooler.dense.weight' as I8; save it as one of F64, F32"),
        (truncate, "model.safetensors is corrupt"),
        (declare_too_large_a_shape, "model.safetensors is corrupt"),
        (leave_a_pickle, "pytorch_model.bin is a pickle.*convert it"),
        (lead_outside_by_link, "is a link to .*outside of its directory"),
        (index_nothing, "has no weight_map of files"),
        (index_numbers, "has no weight_map of files"),
        (lose_a_part, "part-0.safetensors is missing"),
        (flip_a_bit, "model.safetensors does not match its digest in SHA256SUMS"),
        (lose_a_file, "tokenizer.json is missing"),
        (list_a_file_outside, "points outside of its directory"),
        (write_invalid_sums, "SHA256SUMS:1 is not a digest"),
        (untie, "tie_word_embeddings=False; only True is supported"),
        (fewer_positions, "max_position_embeddings=32, but .* has 64; set the key to"),
        (
            leave_out_sizes,
            r"hidden_act='gelu_new' \(the model has 'gelu'\), .*"
            r"hidden_size=32 \(the model has 768\)",
        ),
        (lead_outside_by_index, "points outside of its directory"),
        (change_the_vocabulary, "vocab.txt:.* whose id in tokenizer.json is"),
        (
            enlarge_the_config,
            r"config.model.hidden_size=32 \(the model has 1000000000\)",
        ),
        (another_kind, "model_type='roberta'; only 'bert' is supported"),
        (relative_positions, "position_embedding_type='relative_key'"),
        (cased, "has do_lower_case=False, but the normalizer of tokenizer.json has"),
        (break_the_config, "config.json is not a JSON object"),
        (remove_the_config, "has no config.json; use a Hugging Face directory"),
    ],
)
def test_invalid_directory_is_rejected(source, harm, message):
    directory, _ = source
    harm(directory)
    with pytest.raises(errors.ConfigError, match=message):
        read(directory)
