"""A small exported model, and what tests do to it."""

import functools
import json
import pathlib
import shutil
import tempfile

import jax
import numpy as np
import safetensors.numpy

from bert_jax.data.tokenizers import base, wordpiece
from bert_jax.interop import huggingface_write
from bert_jax.loading import init_from
from bert_jax.model import bert, parameters
from tests.conftest import make_config

VOCAB = (*base.SPECIAL_TOKENS, *(f"w{i}" for i in range(92)))


TOKENIZER = wordpiece.WordPiece(VOCAB, lowercase=True)


@functools.cache
def _exported():
    """Returns an export, which is removed with the process, and its weights by name."""
    directory = tempfile.TemporaryDirectory()
    config = make_config()
    _, params = bert.build(config.model, len(VOCAB), jax.random.key(7))
    arrays = parameters.by_name(params)
    arrays["bert.embeddings.word"] = arrays["bert.embeddings.word"].copy()
    arrays["bert.embeddings.word"][7] = -0.0
    arrays["decoder_bias"] = np.linspace(-1, 1, len(VOCAB), dtype=np.float32)
    params = parameters.place(params, arrays)
    huggingface_write.write(pathlib.Path(directory.name), params, config, TOKENIZER)
    return directory, parameters.by_name(params)


def export_to(directory):
    """Writes other weights than those a run begins with, and returns them by name."""
    exported, arrays = _exported()
    shutil.copytree(exported.name, directory, dirs_exist_ok=True)
    return dict(arrays)


def read(directory, tokenizer=TOKENIZER, **changes):
    config = make_config(init_from=str(directory), **changes)
    return init_from.read(init_from.open_source(config), config, tokenizer)


def tensors_of(directory):
    return safetensors.numpy.load_file(directory / "model.safetensors")


def encoder_of(arrays):
    return {name: array for name, array in arrays.items() if name.startswith("bert.")}


def assert_same(found, expected):
    assert found.keys() == expected.keys()
    for name in expected:
        np.testing.assert_array_equal(found[name], expected[name], err_msg=name)


def keep_only_vocab_txt(directory, vocab):
    """Replaces the tokenizer by a vocab.txt, as in models of before tokenizer.json."""
    (directory / "tokenizer.json").unlink()
    (directory / "vocab.txt").write_text("\n".join(vocab))
    change_json(directory, "tokenizer_config.json", tokenizer_class="BertTokenizer")


def change_tensors(directory, **changes):
    """Keys with __ for dots; None removes a tensor."""
    changes = {name.replace("__", "."): array for name, array in changes.items()}
    tensors = tensors_of(directory) | changes
    tensors = {name: array for name, array in tensors.items() if array is not None}
    safetensors.numpy.save_file(tensors, directory / "model.safetensors")


def keep_one_segment(directory):
    name = "bert.embeddings.token_type_embeddings.weight"
    change_tensors(directory, **{name: tensors_of(directory)[name][:1]})
    change_json(directory, "config.json", type_vocab_size=1)


def change_json(directory, name, **values):
    path = directory / name
    path.write_text(json.dumps(json.loads(path.read_text()) | values))
