"""Tests of bert_jax.data.sources.registry: specs, and a kind that is added."""

import collections

import pytest

from bert_jax.data.sources import input_files, lines, registry, sources, units
from bert_jax.data.sources.document import assemble
from bert_jax.data.sources.kind import FileSource
from bert_jax.errors import ConfigError
from tests.conftest import make_config


@pytest.mark.parametrize(
    "spec", ["", "text", "text:", "txt:a.txt", "a.txt", "tfds:", "files:", "embedded"]
)
def test_the_error_for_a_malformed_spec_lists_all_kinds(spec):
    forms = "embedded:, text:GLOB, .* wikiextractor:GLOB, hf:.*, tfds:"
    with pytest.raises(ConfigError, match=f"has '{spec}'; a source is one of {forms}"):
        registry.parse(spec)


class Reversed(FileSource):
    """Text that is read from its end."""

    name = "reversed"
    form = "reversed:GLOB"

    def read(self, path, part, data_config, counts):
        found = list(lines.plain_lines(path, data_config, counts))
        yield from assemble(iter(found[::-1]), path, data_config, counts)


def test_a_class_and_an_entry_are_a_new_kind(tmp_path, monkeypatch):
    spec = f"reversed:{tmp_path}/*.txt"
    with pytest.raises(ConfigError, match="a source is one of"):
        input_files.find((spec,))
    monkeypatch.setitem(registry.KINDS, "reversed", Reversed)
    (tmp_path / "a.txt").write_text("One.\nTwo.")
    data, counts = make_config().data, collections.Counter()
    (document,) = sources.read(spec, data, counts)
    assert document.lines == ("Two.", "One.")
    found = input_files.find((spec,))
    assert input_files.total_bytes(found) == 9 and not found[0].is_remote
    units.check((spec,))
    assert units.plan(found, 1) == [(0, f"{tmp_path}/a.txt", lines.WHOLE)]
    with pytest.raises(ConfigError, match=", reversed:GLOB$"):
        registry.parse("x:y")


@pytest.mark.parametrize(
    ("spec", "hint"),
    [
        ("books", "; for these files, write text:books/**/*.txt"),
        ("books/*.txt", "; for files, write text:books/*.txt"),
        ("books/a.txt", "; for files, write text:books/a.txt"),
        ("owner/dataset", "; for a dataset on the Hub, write hf:owner/dataset"),
        ("web:x", "[#field]"),
    ],
)
def test_a_path_or_dataset_without_a_kind_is_answered_with_a_source(
    spec, hint, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "books").mkdir()
    (tmp_path / "books/a.txt").write_text("One.")
    with pytest.raises(ConfigError) as error:
        registry.parse(spec)
    assert str(error.value).endswith(hint)
