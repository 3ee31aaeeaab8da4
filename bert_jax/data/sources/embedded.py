"""Reads documents from the docstrings of the installed Python and its packages.

Docstrings are real prose that needs no download. Files are parsed, never imported; the
docstrings of one module are one document.
"""

import ast
import functools
import importlib.metadata
import importlib.util
import inspect
import re
import sys
import sysconfig
import warnings
from collections.abc import Iterator
from pathlib import Path

from bert_jax.data.sources import sentences
from bert_jax.data.sources.kind import DatasetSource, Document, Source, assemble
from bert_jax.data.sources.lines import Reading

# Requirements of bert_jax whose docstrings contain much prose.
PACKAGES = ("numpy", "scipy", "jax", "flax", "optax", "orbax", "matplotlib")


class Embedded(DatasetSource):
    """The docstrings; its version is that of Python and of each package."""

    name = "embedded"
    form = "embedded:"

    def find(self, record: str | None) -> Source:
        installed = importlib.metadata.packages_distributions()
        names = {name for p in PACKAGES for name in installed.get(p, [])}
        versions = (f"{x} {importlib.metadata.version(x)}" for x in sorted(names))
        return Source(self, version=(sys.version, *versions))

    def read(self, reading: Reading) -> Iterator[Document]:
        for _, document in _all_documents():
            yield from assemble(iter((*document, None)), reading, is_split=True)


@functools.cache
def _all_documents() -> list[tuple[str, list[str]]]:
    """Keeps the text, a few MB: it is read twice if a vocabulary is trained."""
    return list(documents())


def documents() -> Iterator[tuple[str, list[str]]]:
    """Yields (name, sentences) for every help topic and every module with prose."""
    from pydoc_data import topics

    for topic, text in topics.topics.items():
        yield f"topic {topic}", _prose(text)
    roots = [Path(sysconfig.get_path("stdlib"))]
    for package in PACKAGES:
        if installed := importlib.util.find_spec(package):
            roots += map(Path, installed.submodule_search_locations or [])
    for root in roots:
        for path in sorted(root.rglob("*.py")):
            parts = path.relative_to(root).parts
            skipped = {"test", "tests", "idle_test", "site-packages", "_vendor"}
            if not skipped.intersection(parts):
                document = [s for text in _docstrings(path) for s in _prose(text)]
                if document:
                    yield "/".join((root.name, *parts)), document


def _docstrings(path: Path) -> Iterator[str]:
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes in third-party files
            pending: list[ast.AST] = [ast.parse(path.read_bytes())]
    except (SyntaxError, ValueError, OSError):
        return
    while pending:
        node = pending.pop()
        if isinstance(node, kinds):
            text = ast.get_docstring(node, clean=False)
            if text:
                yield text
            pending += reversed(node.body)


def _prose(text: str) -> list[str]:
    """Returns the sentences of a docstring, without paragraphs that are not prose."""
    document = []
    for block in re.split(r"\n\s*\n", inspect.cleandoc(text)):
        lines = block.splitlines() or [""]
        is_code = lines[0].startswith((" " * 6, ">>>", "...", "|", "+-", "@"))
        paragraph = " ".join(line.strip() for line in lines)
        letters = sum(map(str.isalpha, paragraph)) + paragraph.count(" ")
        if is_code or ">>>" in paragraph or letters < 0.8 * len(paragraph):
            continue
        paragraph = paragraph.replace("``", "").replace("**", "")
        document += [s for s in sentences.split(paragraph) if len(s.split()) >= 3]
    return document
