"""Opens the tokenizer of a model in Hugging Face's format.

The ids of text are those of transformers. If tokenizer.json gives the ids of one of our
tokenizers, as the files that this package writes do, ours is used, which is faster;
otherwise the `tokenizers` library tokenizes.
"""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tokenizers as tokenizers_lib

from bert_jax.config import TokenizerConfig
from bert_jax.data.tokenizers import library, sentencepiece, tokenizers, wordpiece
from bert_jax.data.tokenizers.base import SPECIAL_TOKENS, Tokenizer
from bert_jax.data.tokenizers.library import LibraryTokenizer
from bert_jax.data.tokenizers.sentencepiece import SentencePiece
from bert_jax.data.tokenizers.wordpiece import WordPiece
from bert_jax.errors import ConfigError, CorruptError
from bert_jax.interop import files, sentence_transformers
from bert_jax.interop.files import SourceTokenizer
from bert_jax.small_files import read_json

SETTINGS = "tokenizer_config.json"
# Classes with the rules of BertTokenizer, and classes that use tokenizer.json as it is,
# each without a final "Fast".
BERT_CLASSES = ("BertTokenizer", "ElectraTokenizer", "MobileBertTokenizer")
FILE_CLASSES = ("PreTrainedTokenizer", "TokenizersBackend")
# Keys of tokenizer_config.json and special_tokens_map.json with one supported value.
FIXED = {
    "auto_map": None,  # code in the repository
    "clean_text": True,
    "cls_token": "[CLS]",
    "do_basic_tokenize": True,
    "mask_token": "[MASK]",
    "never_split": None,
    "pad_token": "[PAD]",
    "sep_token": "[SEP]",
    "truncation_side": "right",
    "unk_token": "[UNK]",
    "wordpieces_prefix": "##",
}
# Keys of tokenizer_config.json -> those of a normalizer in tokenizer.json.
_RULES = {
    "do_lower_case": "lowercase",
    "strip_accents": "strip_accents",
    "tokenize_chinese_chars": "handle_chinese_chars",
}
_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")  # of AddedToken


def open_tokenizer(directory: Path, config: dict[str, Any]) -> SourceTokenizer | None:
    """Opens the tokenizer of a directory; returns None if it has none."""
    names = (SentencePiece.FILE, LibraryTokenizer.FILE, WordPiece.FILE)
    name = next((n for n in names if os.path.lexists(directory / n)), None)
    if name is None:
        return None
    settings = _settings(directory, config)
    path = files.file(directory, name)
    if name == SentencePiece.FILE:
        return _open_sentencepiece(path, settings)
    kind = str(settings["tokenizer_class"]).removesuffix("Fast")
    is_file = name == LibraryTokenizer.FILE
    if kind not in BERT_CLASSES + FILE_CLASSES * is_file:
        words = settings.get("word_tokenizer_type")
        raise ConfigError(
            f"{directory} has the tokenizer {settings['tokenizer_class']}"
            f"{f' with {words}' if words else ''}; only BertTokenizer, and"
            " PreTrainedTokenizerFast with a tokenizer.json, are supported"
        )
    if not is_file:
        return _open_vocab_txt(path, settings)
    return _open_file(path, settings, has_bert_rules=kind in BERT_CLASSES)


def _settings(directory: Path, config: dict[str, Any]) -> dict[str, Any]:
    """Returns tokenizer_config.json with the content of files that it replaced."""
    path = directory / SETTINGS
    settings = files.optional_json(directory, SETTINGS)
    if settings.get("added_tokens_decoder") is None:
        settings |= files.optional_json(directory, "special_tokens_map.json")
        ids = files.optional_json(directory, "added_tokens.json")
        added = {str(id_): {"content": token} for token, id_ in ids.items()}
        settings["added_tokens_decoder"] = added
    kind = settings.get("tokenizer_class") or config.get("tokenizer_class")
    settings["tokenizer_class"] = kind or BERT_CLASSES[0]
    files.check_fixed(settings, FIXED, path)
    for key in _RULES:
        if not isinstance(settings.get(key), bool | None):
            raise CorruptError(f"{path} has {key}={settings[key]!r}; download it again")
    names = settings.get("model_input_names")
    if names is not None and "token_type_ids" not in str(names):
        raise ConfigError(
            f"{path} has model_input_names={names!r}; models that do not use"
            " token_type_ids are not supported"
        )
    return settings


def _open_sentencepiece(path: Path, settings: dict[str, Any]) -> SourceTokenizer:
    """Opens the model of a directory that this package wrote."""
    content = files.read(path.parent, path.name)
    kind = sentencepiece.kind(content, str(path))

    def build(lowercase: bool) -> Tokenizer:
        config = TokenizerConfig(
            kind=kind, vocab_file=str(path), vocab_size=0, lowercase=lowercase
        )
        return tokenizers.parse(content, config, str(path))

    return SourceTokenizer(path, settings.get("do_lower_case"), build, content, kind)


def _open_vocab_txt(path: Path, settings: dict[str, Any]) -> SourceTokenizer:
    """Opens a vocab.txt, which BertTokenizer reads."""
    lines = wordpiece.tokens_in(files.read(path.parent, path.name), str(path))

    def build(lowercase: bool) -> LibraryTokenizer:
        tokenizer = library.bert(lines, settings | {"do_lower_case": lowercase})
        return _finish(tokenizer, path, settings, lines)

    lowercase = settings.get("do_lower_case")
    corpora = build(lowercase is not False).for_corpora
    return SourceTokenizer(path, lowercase, build, corpora and corpora.content())


def _open_file(
    path: Path, settings: dict[str, Any], *, has_bert_rules: bool
) -> SourceTokenizer:
    state = read_json(path)
    if has_bert_rules:
        state = _with_bert_rules(state, settings, path.parent)
    tokenizer = library.parse(json.dumps(state), str(path))
    recorded, lowercase = settings.get("do_lower_case"), library.lowercases(tokenizer)
    if recorded not in (None, lowercase):
        raise ConfigError(
            f"{path.with_name(SETTINGS)} has do_lower_case={recorded}, but the"
            f" normalizer of {path.name} has {lowercase}; correct the one that is wrong"
        )
    found = _finish(tokenizer, path, settings, _lines_beside(path, tokenizer))
    corpora = found.for_corpora
    used = corpora if corpora and found.equals_for_corpora() else found
    return SourceTokenizer(
        path.with_name(WordPiece.FILE) if corpora else path,
        found.lowercase,
        lambda _: used,
        corpora and corpora.content(),
    )


def _with_bert_rules(
    state: dict[str, Any], settings: dict[str, Any], directory: Path
) -> dict[str, Any]:
    """Applies tokenizer_config.json to a tokenizer.json, as BertTokenizer does.

    With other rules in tokenizer.json, transformers 4 follows that file, and
    transformers 5 BertTokenizer; such a directory is refused.
    """
    normalizer = state.get("normalizer")
    if isinstance(normalizer, dict) and normalizer.get("type") == "BertNormalizer":
        given = {_RULES[key]: settings[key] for key in _RULES if key in settings}
        state = state | {"normalizer": normalizer | given}
    texts = library.SAMPLE + library.CORNERS
    rules = library.bert(SPECIAL_TOKENS, settings).to_str()
    expected = library.sample_ids(rules, texts)
    if library.sample_ids(json.dumps(state), texts) != expected:
        raise ConfigError(
            f"{directory}: tokenizer.json has other rules than"
            f" {settings['tokenizer_class']} with"
            f" do_lower_case={settings.get('do_lower_case', True)}, the tokenizer of"
            f" {SETTINGS}; if tokenizer.json is right, set"
            f' "tokenizer_class": "PreTrainedTokenizerFast" in {SETTINGS}'
        )
    return state


def _lines_beside(path: Path, tokenizer: tokenizers_lib.Tokenizer) -> tuple[str, ...]:
    """Returns the lines of a vocab.txt beside tokenizer.json, which it must match."""
    if not os.path.lexists(path.with_name(WordPiece.FILE)):
        return ()
    content = files.read(path.parent, WordPiece.FILE)
    lines = wordpiece.tokens_in(content, str(path.with_name(WordPiece.FILE)))
    for token, id_ in {token: i for i, token in enumerate(lines)}.items():
        # The library strips white space from the ends of lines.
        other = tokenizer.token_to_id(token)
        if token and token == token.rstrip() and other != id_:
            raise ConfigError(
                f"{path.with_name(WordPiece.FILE)}:{id_ + 1} has {token!r}, whose id in"
                f" {path.name} is {other}; delete the file that is wrong"
            )
    return lines


def _finish(
    tokenizer: tokenizers_lib.Tokenizer,
    path: Path,
    settings: dict[str, Any],
    lines: Sequence[str],
) -> LibraryTokenizer:
    """Adds the tokens and rules that other files than tokenizer.json record."""
    try:
        added = _added_tokens(tokenizer, settings)
    except (TypeError, ValueError, AttributeError, KeyError):
        raise CorruptError(
            f"{path.parent}: its added tokens are corrupt; download it again"
        ) from None
    present = {t.content for t in tokenizer.get_added_tokens_decoder().values()}
    for id_, token in sorted(added.items()):
        if token.content not in present:
            tokenizer.add_tokens([token])
        found = tokenizer.token_to_id(token.content)
        if found != id_:
            raise ConfigError(
                f"{path.parent}: the added token {token.content!r} has the id {id_} in"
                f" {SETTINGS} or added_tokens.json, and {found} in the vocabulary;"
                " correct the file that is wrong"
            )
    if sentence_transformers.lowercases(path.parent):
        steps = [tokenizers_lib.normalizers.Lowercase(), tokenizer.normalizer]
        tokenizer.normalizer = tokenizers_lib.normalizers.Sequence(
            [step for step in steps if step is not None]
        )
    return library.read(tokenizer.to_str(), str(path), lines)


def _added_tokens(
    tokenizer: tokenizers_lib.Tokenizer, settings: dict[str, Any]
) -> dict[int, tokenizers_lib.AddedToken]:
    """Returns the tokens that other files than tokenizer.json add, by id."""
    added = {}
    for id_, token in settings["added_tokens_decoder"].items():
        flags = {key: token[key] for key in _FLAGS if key in token}
        added[int(id_)] = tokenizers_lib.AddedToken(token["content"], **flags)
    for name in _special_names(settings):
        id_ = tokenizer.token_to_id(name)
        if id_ is not None:
            added.setdefault(id_, tokenizers_lib.AddedToken(name, special=True))
    return added


def _special_names(settings: dict[str, Any]) -> list[str]:
    extra = settings.get("extra_special_tokens")
    extra = extra or settings.get("additional_special_tokens") or []
    found = list(extra.values()) if isinstance(extra, dict) else list(extra)
    found += [settings[key] for key in settings if key.endswith("_token")]
    names = [token["content"] if isinstance(token, dict) else token for token in found]
    return [name for name in names if isinstance(name, str)]
