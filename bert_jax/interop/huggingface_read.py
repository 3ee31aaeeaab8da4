"""Reads the weights, sizes and vocabulary of a BERT in Hugging Face's format.

The files are not trusted: no pickle is opened, no link that points outside is followed,
and the files are checked against each other before weights are read.
"""

import contextlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import safetensors

from bert_jax.data.tokenizers import tokenizers, wordpiece
from bert_jax.errors import ConfigError, CorruptError
from bert_jax.interop import files as files_lib
from bert_jax.interop import weight_names
from bert_jax.interop.files import Source
from bert_jax.interop.huggingface_config import DEFAULTS
from bert_jax.interop.huggingface_write import WEIGHTS
from bert_jax.interop.weight_names import HUGGINGFACE
from bert_jax.small_files import read_json

PICKLES = (".bin", ".pt", ".pth", ".ckpt")
FLOATS = ("F64", "F32", "F16", "BF16")  # quantized weights are not supported
# Keys for which only the default value is supported.
FIXED_KEYS = ("model_type", "position_embedding_type", "tie_word_embeddings")
# Activations that differ from gelu_new in rounding only.
SAME_ACTIVATION = {"gelu_pytorch_tanh": "gelu_new", "gelu_fast": "gelu_new"}
# Tensors that some versions store as copies -> the original.
REPEATED = {
    "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
    "cls.predictions.decoder.bias": "cls.predictions.bias",
}
IGNORED_TENSORS = ("bert.embeddings.position_ids",)  # the numbers 0, 1, 2, ...
TOKENIZER_FILES = ("vocab.txt", "sentencepiece.model")
CASE_UNKNOWN = (
    "its files do not record whether its text was lower-cased; using"
    " config.tokenizer.lowercase"
)


def open_source(directory: Path, wanted: Iterable[str], tokenizer_file: str) -> Source:
    """Opens a BERT whose weights are model.safetensors or an index of several files.

    Args:
      directory: a directory with a config.json.
      wanted: our names of the parameters to read.
      tokenizer_file: the file name of the kind of tokenizer to look for first.

    Raises:
      ConfigError: if it is not such a BERT, or a file is corrupt or a link that points
        outside.
    """
    sizes = config_values(directory)
    tensors = _Tensors(directory)
    stored, unused = weight_names.find(tensors.shapes, wanted, HUGGINGFACE)
    vocabulary_path, vocabulary = _vocabulary(directory, tokenizer_file)
    lowercase = _lowercase(directory)

    def lay_out(name: str, array: np.ndarray) -> np.ndarray:
        return HUGGINGFACE.lay_out(name, array.astype(np.float32))

    def read() -> dict[str, np.ndarray]:
        tensors.check_repeated()
        return {
            ours: lay_out(ours, tensors.read(name)) for ours, name in stored.items()
        }

    return Source(
        directory=directory,
        sizes=sizes,
        lowercase=lowercase,
        shapes={
            ours: HUGGINGFACE.lay_out_shape(ours, tensors.shapes[name])
            for ours, name in stored.items()
        },
        unused=unused,
        vocabulary=vocabulary,
        vocabulary_path=vocabulary_path,
        read=read,
        notes=() if lowercase is not None else (CASE_UNKNOWN,),
    )


def config_values(directory: Path) -> dict[str, Any]:
    """Returns the values of config.json and defaults, by config.model's names.

    Raises:
      ConfigError: if the file is missing, or the model is not a supported BERT.
    """
    path = files_lib.file(directory, "config.json")
    config = DEFAULTS | read_json(path)
    for key in FIXED_KEYS:
        if config[key] != DEFAULTS[key]:
            raise ConfigError(
                f"{path} has {key}={config[key]!r}; only {DEFAULTS[key]!r} is supported"
            )
    activation = config["hidden_act"]
    if isinstance(activation, str):
        config["hidden_act"] = SAME_ACTIVATION.get(activation, activation)
    return config


def max_length(directory: Path) -> int | None:
    """Returns the maximum number of tokens in a row in tokenizer_config.json, or None.

    Raises:
      ConfigError: if the file is corrupt.
    """
    name = "tokenizer_config.json"
    if not os.path.lexists(directory / name):
        return None
    length = read_json(files_lib.file(directory, name)).get("model_max_length")
    # transformers writes 1e30 if there is no limit.
    return length if type(length) is int and length > 0 else None


class _Tensors:
    """The tensors of model.safetensors, or of the files that its index names.

    Attributes:
      shapes: the shapes by current name, without tensors that repeat others.
    """

    def __init__(self, directory: Path):
        self._stored: dict[str, tuple[Path, str]] = {}
        self._repeated: dict[str, tuple[Path, str]] = {}
        self.shapes: dict[str, tuple[int, ...]] = {}
        for path, names in _weight_files(directory).items():
            with _open(path) as file:
                stored = set(file.keys())
                for name in sorted(stored if names is None else names):
                    if name not in stored:
                        raise CorruptError(f"{path} lacks {name!r}; download it again")
                    self._add(path, name, file.get_slice(name))
        # Some models store the decoder's bias only under the name of the copy.
        for original in self._repeated.keys() - self._stored.keys():
            self._stored[original] = self._repeated.pop(original)
            path, name = self._stored[original]
            with _open(path) as file:
                self.shapes[original] = tuple(file.get_slice(name).get_shape())

    def _add(self, path: Path, name: str, tensor: Any) -> None:
        current = weight_names.current_huggingface_name(name)
        if current in IGNORED_TENSORS:
            return
        dtype, original = tensor.get_dtype(), REPEATED.get(current)
        if dtype not in FLOATS:
            raise ConfigError(
                f"{path} stores {name!r} as {dtype}; save it as one of"
                f" {', '.join(FLOATS)}"
            )
        if current in self._stored or original in self._repeated:
            raise ConfigError(f"{path} repeats {name!r}; keep one of the two")
        if original is not None:
            self._repeated[original] = path, name
            return
        self._stored[current] = path, name
        self.shapes[current] = tuple(tensor.get_shape())

    def read(self, name: str) -> np.ndarray:
        return _read(*self._stored[name])

    def check_repeated(self) -> None:
        """Raises ConfigError if a tensor differs from the one that it should repeat."""
        for original, (path, name) in self._repeated.items():
            if not np.array_equal(_read(path, name), self.read(original)):
                raise ConfigError(
                    f"{path} has {name!r}, which differs from {original!r}; only models"
                    " that tie the two are supported"
                )


def _read(path: Path, name: str) -> np.ndarray:
    with _open(path) as file:
        return file.get_tensor(name)


@contextlib.contextmanager
def _open(path: Path) -> Iterator[Any]:
    try:
        with safetensors.safe_open(path, framework="np") as file:
            yield file
    except (safetensors.SafetensorError, OSError) as error:
        raise CorruptError(f"{path} is corrupt ({error}); download it again") from None


def _weight_files(directory: Path) -> dict[Path, list[str] | None]:
    """Returns the weight files and the tensors to read from each; None for all."""
    index = f"{WEIGHTS}.index.json"
    if os.path.lexists(directory / WEIGHTS):
        return {files_lib.file(directory, WEIGHTS): None}
    if os.path.lexists(directory / index):
        parts: Any = read_json(files_lib.file(directory, index))
        parts = parts.get("weight_map")
        files = list(parts.values()) if isinstance(parts, dict) else []
        if not files or not all(isinstance(name, str) for name in files):
            raise CorruptError(
                f"{directory / index} has no weight_map of files; download it again"
            )
        names: dict[str, list[str]] = {}
        for name, part in parts.items():
            names.setdefault(part, []).append(name)
        return {files_lib.file(directory, p): n for p, n in names.items()}
    pickles = sorted(p.name for p in directory.iterdir() if p.suffix in PICKLES)
    if pickles:
        raise ConfigError(
            f"{directory / pickles[0]} is a pickle, which can run code when it is"
            f" opened; {conversion(str(directory))}"
        )
    raise ConfigError(f"{directory} has no {WEIGHTS}; add it or use another model")


def conversion(model: str) -> str:
    """Returns the remedy for a model whose weights are pickles."""
    return (
        "if you trust it, convert it where torch is installed: python -c"
        f" \"import transformers as t; d, to = '{model}', 'NEW_DIRECTORY';"
        " t.AutoModelForPreTraining.from_pretrained(d).save_pretrained(to);"
        ' t.AutoTokenizer.from_pretrained(d).save_pretrained(to)"'
    )


def _lowercase(directory: Path) -> bool | None:
    """Returns whether the tokenizer lower-cases text, or None if no file records it.

    Raises:
      ConfigError: if it treats accents or ideographs differently from BERT's tokenizer.
    """
    rules: dict[str, Any] = {}
    for name, section in (
        ("tokenizer.json", "normalizer"),
        ("tokenizer_config.json", None),
    ):
        if os.path.lexists(directory / name):
            found: Any = read_json(files_lib.file(directory, name))
            found = found.get(section) if section else found
            rules |= found if isinstance(found, dict) else {}
    lowercase = rules.get("do_lower_case", rules.get("lowercase"))
    for key, only in (
        ("strip_accents", (None, lowercase)),
        ("tokenize_chinese_chars", (None, True)),
        ("handle_chinese_chars", (None, True)),
    ):
        if rules.get(key) not in only:
            raise ConfigError(
                f"{directory}: its tokenizer has {key}={rules[key]!r}, unlike BERT's;"
                " a corpus for it cannot be prepared"
            )
    return lowercase if isinstance(lowercase, bool) else None


def _vocabulary(directory: Path, tokenizer_file: str) -> tuple[Path, bytes | None]:
    """Returns the path and contents of the tokenizer file, in our format.

    The name of the path shows the kind of tokenizer, which may differ from that of
    `tokenizer_file`.
    """
    files = dict.fromkeys([tokenizer_file, *TOKENIZER_FILES])
    for name in files:
        if os.path.lexists(directory / name):
            path, content = directory / name, files_lib.read(directory, name)
            if name == tokenizers.WordPiece.FILE:
                content = _with_added_tokens(directory, content)
            return path, content
    if os.path.lexists(directory / "tokenizer.json"):
        path = files_lib.file(directory, "tokenizer.json")
        # transformers 5 writes no other file for a WordPiece tokenizer.
        return directory / tokenizers.WordPiece.FILE, _wordpiece_in(path)
    return directory / tokenizer_file, None


def _with_added_tokens(directory: Path, content: bytes) -> bytes:
    """Returns the contents of vocab.txt with the tokens that other files add to it.

    Raises:
      ConfigError: if it is not UTF-8, or the ids of all tokens are not 0, 1, 2, ...
    """
    ids: dict[str, Any] = {}
    if os.path.lexists(directory / "added_tokens.json"):
        ids |= read_json(files_lib.file(directory, "added_tokens.json"))
    if os.path.lexists(directory / "tokenizer.json"):
        ids |= _added_in(read_json(files_lib.file(directory, "tokenizer.json")))
    path = directory / tokenizers.WordPiece.FILE
    pieces = {t: i for i, t in enumerate(wordpiece.tokens_in(content, str(path)))}
    if ids.keys() <= pieces.keys():
        return content
    # The line of a token in vocab.txt takes precedence over its id in other files.
    return _in_order(ids | pieces, directory)


def _wordpiece_in(path: Path) -> bytes:
    """Returns the vocabulary of a tokenizer.json in the format of vocab.txt."""
    tokenizer = read_json(path)
    model = tokenizer.get("model")
    if not isinstance(model, dict) or model.get("type") != "WordPiece":
        raise ConfigError(
            f"{path} is not a WordPiece tokenizer; a corpus for it cannot be prepared"
        )
    pieces = model.get("vocab")
    if not isinstance(pieces, dict):
        raise CorruptError(f"{path} has no vocabulary; download it again")
    return _in_order(pieces | _added_in(tokenizer), path)


def _added_in(tokenizer: dict[str, Any]) -> dict[str, Any]:
    added = tokenizer.get("added_tokens")
    tokens = (
        [t for t in added if isinstance(t, dict)] if isinstance(added, list) else []
    )
    return {str(token.get("content")): token.get("id") for token in tokens}


def _in_order(ids: dict[str, Any], path: Path) -> bytes:
    """Returns the tokens, one on each line, in the order of their ids."""
    if sorted(map(str, ids.values())) != sorted(map(str, range(len(ids)))) or any(
        type(id_) is not int for id_ in ids.values()
    ):
        raise ConfigError(f"{path}: the ids of its tokens are not 0, 1, 2, ...")
    try:
        return "".join(
            f"{token}\n" for token in sorted(ids, key=lambda t: ids[t])
        ).encode()
    except UnicodeEncodeError:
        raise ConfigError(
            f"{path} has a token that is not valid Unicode text"
        ) from None
