"""Where documents come from: a source spec -> documents, each a list of sentences.

embedded:                  documentation inside this Python and our dependencies
text:GLOB                  plain text; see `text_documents` for how it is read
jsonl:GLOB#field           a JSON object a line, the document in one field
wikiextractor:GLOB         WikiExtractor's <doc ...> ... </doc> files
tfds:NAME[/CONFIG]#field   a text dataset of TensorFlow Datasets, split "train"
"""

import ast
import glob
import importlib.metadata
import importlib.util
import inspect
import json
import os
import re
import sys
import sysconfig
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from bert_jax.config import ConfigError
from bert_jax.data import sentences

Document = list[str]  # sentences

# Packages with much prose in their docstrings; all are requirements of this one.
EMBEDDED_PACKAGES = ("numpy", "scipy", "jax", "flax", "optax", "orbax", "matplotlib")

_HEADING = re.compile(r"^(#{1,6}\s+\S.*|\s*=\s+[^=\s](.*[^=\s])?\s+=\s*)$")
_WIKI_SUBHEADING = re.compile(r"^\s*(=\s+){2,}.*=\s*$")
_DOC_START = re.compile(r"^<doc\s[^>]*>\s*$")
_SAMPLE_LINES = 2000


def documents(spec: str) -> Iterator[Document]:
    """Yields the documents of one source, in a fixed order, empty ones included.

    Raises:
      ConfigError: when the spec names no known kind, no file, or a field or dataset
        that does not exist, or when a file is not what the spec says.
    """
    kind, argument = _parse(spec)
    yield from _READERS[kind](argument)


def check(specs: tuple[str, ...]) -> None:
    """Raises ConfigError when a spec is malformed or names no file."""
    for spec in specs:
        kind, argument = _parse(spec)
        if kind in _FILE_KINDS:
            _files(_pattern(kind, argument))
        if kind in ("jsonl", "tfds") and "#" not in argument:
            raise ConfigError(
                f"config.data.sources has {spec!r} without a field;"
                f" write {spec}#text (or the field that holds the text)"
            )


def size_bytes(specs: tuple[str, ...]) -> int | None:
    """Returns the bytes of all local files, or None when a source is not local."""
    total = 0
    for spec in specs:
        kind, argument = _parse(spec)
        if kind in _FILE_KINDS:
            pattern = _pattern(kind, argument)
            if "://" in pattern:
                return None
            total += sum(os.path.getsize(path) for path in _files(pattern))
        elif kind != "embedded":
            return None
    return total


def by_file(spec: str) -> list[str]:
    """Returns specs that together give the documents of one, a spec a file."""
    kind, argument = _parse(spec)
    if kind not in _FILE_KINDS:
        return [spec]
    pattern = _pattern(kind, argument)
    field = argument.removeprefix(pattern)
    return [f"{kind}:{_escaped(path)}{field}" for path in _files(pattern)]


def _escaped(path: str) -> str:
    """Returns a pattern that only this path matches; buckets have their own rules."""
    return path if "://" in path else glob.escape(path)


def fingerprint(specs: tuple[str, ...]) -> list[list[Any]]:
    """Returns JSON values that change when the text behind the sources does.

    Of files path, size and time of change, of the embedded text the versions of what it
    stands in. A dataset is named with its version by who wants to be sure.
    """
    found: list[list[Any]] = []
    for spec in specs:
        kind, argument = _parse(spec)
        if kind in _FILE_KINDS:
            found += [_stat(path) for path in _files(_pattern(kind, argument))]
        elif kind == "embedded":
            found.append([sys.version, *map(_version, EMBEDDED_PACKAGES)])
    return found


def _stat(path: str) -> list[Any]:
    if "://" in path:
        from bert_jax.data.quiet_tensorflow import tf

        stat = tf.io.gfile.stat(path)
        return [path, stat.length, stat.mtime_nsec]
    stat = os.stat(path)
    return [os.path.abspath(path), stat.st_size, stat.st_mtime_ns]


def _version(package: str) -> str:
    distributions = importlib.metadata.packages_distributions().get(package, [])
    return ", ".join(
        f"{name} {importlib.metadata.version(name)}" for name in distributions
    )


def _parse(spec: str) -> tuple[str, str]:
    kind, colon, argument = spec.partition(":")
    if kind not in _READERS or not colon or not (argument or kind == "embedded"):
        raise ConfigError(
            f"config.data.sources has {spec!r}; a source is one of embedded:,"
            " text:GLOB, jsonl:GLOB#field, wikiextractor:GLOB, tfds:NAME#field"
        )
    return kind, argument


def _pattern(kind: str, argument: str) -> str:
    return argument.partition("#")[0] if kind == "jsonl" else argument


def _files(pattern: str) -> list[str]:
    if "://" in pattern:
        import tensorflow as tf

        paths = tf.io.gfile.glob(pattern)
    else:
        found = glob.glob(os.path.expanduser(pattern), recursive=True)
        paths = [path for path in found if os.path.isfile(path)]
    if not paths:
        raise ConfigError(
            f"config.data.sources: no file matches {pattern!r}"
            f" (looked from {os.getcwd()})"
        )
    return sorted(paths)


def _lines(path: str) -> Iterator[str]:
    """Yields the lines of a UTF-8 file without their ends, in universal newlines."""
    if "://" in path:
        import tensorflow as tf

        with tf.io.gfile.GFile(path, "r") as file:
            for line in file:
                yield line.rstrip("\r\n")
        return
    try:
        with open(path, encoding="utf-8-sig") as file:
            for line in file:
                yield line.rstrip("\n")
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{path} is not UTF-8 ({error.reason} after byte {error.start} of a read);"
            f" convert it: iconv -f LATIN1 -t UTF-8 {path}"
        ) from None


# ------------------------------------------------------------------- plain text


def _text(pattern: str) -> Iterator[Document]:
    for path in _files(pattern):
        yield from text_documents(list(_lines(path)))


def text_documents(lines: list[str]) -> Iterator[Document]:
    """Yields the documents of one plain-text file.

    How the file is laid out is told from its first 2,000 lines:

    1. It has headings (Markdown `# ...`, or `= Title =` as in WikiText): running text,
       a document under each heading; blank lines only separate paragraphs.
    2. At least nine in ten of its lines hold one sentence, and blank lines stand
       between groups of several: a sentence a line, a blank line between documents.
    3. Every group between blank lines is a single line: running text, a paragraph a
       line with blank lines between; the file is one document.
    4. Otherwise: running text, a blank line between documents, a paragraph a line.
    """
    sample = lines[:_SAMPLE_LINES]
    if any(_HEADING.match(line) for line in sample):
        yield from _split_running(lines, blank_line_ends=False)
    elif not _has_groups(sample):
        yield _sentences(lines)
    elif _is_sentence_a_line(sample):
        yield from _groups([line.strip() for line in lines])
    else:
        yield from _split_running(lines, blank_line_ends=True)


def _split_running(lines: list[str], *, blank_line_ends: bool) -> Iterator[Document]:
    document: list[str] = []
    for line in lines:
        blank = not line.strip()
        if _HEADING.match(line) or (blank and blank_line_ends):
            if document:
                yield _sentences(document)
            document = []
        elif not blank and not _WIKI_SUBHEADING.match(line):
            document.append(line)
    if document:
        yield _sentences(document)


def _sentences(paragraphs: list[str]) -> Document:
    return [s for paragraph in paragraphs for s in sentences.split(paragraph)]


def _groups(lines: list[str]) -> Iterator[list[str]]:
    """Yields the runs of non-blank lines."""
    group: list[str] = []
    for line in [*lines, ""]:
        if line.strip():
            group.append(line)
        elif group:
            yield group
            group = []


def _has_groups(lines: list[str]) -> bool:
    return any(len(group) > 1 for group in _groups(lines))


def _is_sentence_a_line(lines: list[str]) -> bool:
    filled = [line for line in lines if line.strip()]
    single = sum(len(sentences.split(line)) == 1 for line in filled)
    return single >= 0.9 * len(filled)


# ------------------------------------------------- JSON lines, WikiExtractor, TFDS


def _jsonl(argument: str) -> Iterator[Document]:
    pattern, _, field = argument.partition("#")
    for path in _files(pattern):
        for number, line in enumerate(_lines(path), start=1):
            if not line.strip():
                continue
            try:
                text = json.loads(line)[field]
            except (json.JSONDecodeError, KeyError, TypeError):
                text = None
            if not isinstance(text, str):
                raise ConfigError(
                    f"{path}:{number} is not a JSON object with a text field"
                    f" {field!r}; name the field in config.data.sources as"
                    " jsonl:GLOB#field"
                )
            # Half a surrogate pair, as JSON can spell it, is no text.
            text = text.encode("utf-8", "replace").decode("utf-8")
            yield _sentences(text.splitlines())


def _wikiextractor(pattern: str) -> Iterator[Document]:
    for path in _files(pattern):
        paragraphs: list[str] | None = None
        found = False
        for line in _lines(path):
            if _DOC_START.match(line):
                paragraphs, found = [], True
            elif line.strip() == "</doc>":
                # The first line repeats the title.
                yield _sentences((paragraphs or [])[1:])
                paragraphs = None
            elif paragraphs is not None and line.strip():
                paragraphs.append(line)
        if paragraphs is not None:  # the file ends inside a document
            yield _sentences(paragraphs[1:])
        if not found:
            raise ConfigError(
                f"{path} has no <doc ...> line; is it WikiExtractor output?"
                f" For plain text write text:{pattern}"
            )


def _tfds(argument: str) -> Iterator[Document]:
    import tensorflow_datasets as tfds

    name, _, field = argument.partition("#")
    try:
        builder: Any = tfds.builder(name)
    except tfds.core.DatasetNotFoundError:
        raise ConfigError(
            f"config.data.sources: TensorFlow Datasets has no {name!r};"
            " see https://www.tensorflow.org/datasets/catalog"
        ) from None
    if field not in (builder.info.features or {}):
        raise ConfigError(
            f"config.data.sources: {name} has no field {field!r}; it has"
            f" {', '.join(builder.info.features or {})}"
        )
    feature = builder.info.features[field]
    if feature.shape != () or np.dtype(feature.np_dtype) != object:
        raise ConfigError(
            f"config.data.sources: field {field!r} of {name} is not text; its fields"
            f" are {', '.join(builder.info.features)}"
        )
    builder.download_and_prepare()
    # In the order written: the order of documents must not depend on threads.
    read_config = tfds.ReadConfig(interleave_cycle_length=1)
    dataset = builder.as_dataset(
        split="train", shuffle_files=False, read_config=read_config
    )
    for example in dataset.as_numpy_iterator():
        yield _sentences(example[field].decode("utf-8").splitlines())


# --------------------------------------------------------------- embedded corpus


def _embedded(argument: str) -> Iterator[Document]:
    """Yields the reference topics and docstrings installed with Python and with us.

    Nothing is imported: files are parsed, and a module's docstrings make a document.
    """
    if argument:
        raise ConfigError(f"config.data.sources: embedded: takes no {argument!r}")
    stdlib = Path(sysconfig.get_path("stdlib"))
    for text in _string_values(stdlib / "pydoc_data" / "topics.py"):
        yield _prose(text)
    roots = [stdlib]
    for package in EMBEDDED_PACKAGES:
        found = importlib.util.find_spec(package)
        roots += [Path(p) for p in ((found and found.submodule_search_locations) or [])]
    for root in roots:
        for path in sorted(root.rglob("*.py")):
            parts = path.relative_to(root).parts
            skipped = {"test", "tests", "idle_test", "site-packages", "_vendor"}
            if not skipped.intersection(parts):
                document = [s for text in _docstrings(path) for s in _prose(text)]
                if document:
                    yield document


def _parse_python(path: Path) -> ast.Module:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # other people's invalid escapes
            return ast.parse(path.read_bytes())
    except (SyntaxError, ValueError, OSError):
        return ast.Module(body=[], type_ignores=[])


def _string_values(path: Path) -> Iterator[str]:
    """Yields the values of the dictionaries of strings in a Python file."""
    for node in ast.walk(_parse_python(path)):
        if isinstance(node, ast.Dict):
            for value in node.values:
                if isinstance(value, ast.Constant) and isinstance(value.value, str):
                    yield value.value


def _docstrings(path: Path) -> Iterator[str]:
    """Yields a module's docstrings in reading order."""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    pending: list[ast.AST] = [_parse_python(path)]
    while pending:
        node = pending.pop()
        if isinstance(node, kinds):
            text = ast.get_docstring(node, clean=False)
            if text:
                yield text
            pending += reversed(node.body)


def _prose(text: str) -> Document:
    """Returns the sentences of the paragraphs of a docstring that are prose."""
    document = []
    for block in re.split(r"\n\s*\n", inspect.cleandoc(text)):
        lines = block.splitlines() or [""]
        is_code = lines[0].startswith((" " * 6, ">>>", "...", "|", "+-", "@"))
        paragraph = " ".join(line.strip() for line in lines)
        letters = sum(c.isalpha() or c == " " for c in paragraph)
        if is_code or ">>>" in paragraph or letters < 0.8 * len(paragraph):
            continue
        paragraph = paragraph.replace("``", "").replace("**", "")
        document += [s for s in sentences.split(paragraph) if len(s.split()) >= 3]
    return document


_READERS: dict[str, Callable[[str], Iterator[Document]]] = {
    "embedded": _embedded,
    "text": _text,
    "jsonl": _jsonl,
    "wikiextractor": _wikiextractor,
    "tfds": _tfds,
}
_FILE_KINDS = ("text", "jsonl", "wikiextractor")
