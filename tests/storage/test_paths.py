"""Tests of bert_jax.storage.paths."""

import dataclasses
import functools
import importlib
import pathlib
import re
import sys

import pytest

from bert_jax import cli, probes, storage
from bert_jax.configs.finetune import own
from bert_jax.data.sources import sources
from bert_jax.errors import ConfigError
from bert_jax.finetuning import config as finetuning_config
from bert_jax.finetuning.tasks import TASKS
from bert_jax.loading import branch
from bert_jax.loading import source as loading
from tests import probe_data
from tests.commands import ROOT, run_program
from tests.conftest import make_config

HOME, ROOTS_HOME = (str(pathlib.Path(x).expanduser()) for x in ("~", "~root"))


@pytest.mark.parametrize(
    "path, expected",
    [
        ("runs/a", "runs/a"),
        ("runs/a//", "runs/a"),
        ("/", "/"),
        ("run-10:30/a", "run-10:30/a"),
        ("./gs:/b/r", "./gs:/b/r"),
        ("./~/a", "./~/a"),
        ("~/runs/a", f"{HOME}/runs/a"),
        ("~root/a", f"{ROOTS_HOME}/a"),
        ("gs://b/r/", "gs://b/r"),
        ("gcs://b/r", "gs://b/r"),
        ("GS://b/R", "gs://b/R"),
        ("s3a://b/**/*.txt", "s3://b/**/*.txt"),
    ],
)
def test_the_normal_form_of_a_path(path, expected):
    assert storage.parse_path("--workdir", path) == expected
    assert storage.parse_path("--workdir", expected) == expected


INVALID = [
    ("gs:/b/r", "is not a URL; write gs://b/r, or ./gs:/b/r for a local path"),
    ("s3:/b", "is not a URL; write s3://b"),
    ("gs://", "is not of the form gs://BUCKET/DIRECTORY"),
    ("file:///r", "is not of the form file://BUCKET/DIRECTORY"),
    ("gs://b/../r", "without //, . and .. in the directory"),
    ("gs://b//r", "without //, . and .. in the directory"),
    ("gs://user:secret@b/r", "is a URL with a user name or password; remove them"),
    (" gs://b/r", "has white space at its start or end; remove it"),
    ("runs/a\n", "has white space at its start or end; remove it"),
    ("runs/\x00a", "is not a path; give another one"),
    ("~nobody-here/a", "has no such user; write ./~nobody-here/a for a dir"),
    ("$HOME/a", "starts with a variable that the shell has not replaced"),
    ("s4://b/r", "s4:// is not supported .*; use gs://, s3:// or a local path"),
]


@pytest.mark.parametrize("path, message", INVALID)
def test_what_is_no_path_is_an_error_in_one_line(path, message):
    with pytest.raises(ConfigError, match=message) as error:
        storage.parse_path("--workdir", path)
    text = str(error.value)
    assert text.startswith("--workdir") and "\n" not in text and "secret" not in text


def test_advice_for_local_paths_can_be_followed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for path in ("./gs:/b/r", "./~nobody-here/a"):
        storage.make_directory(storage.parse_path("--workdir", path))
    assert {x.name for x in tmp_path.iterdir()} == {"gs:", "~nobody-here"}


def test_a_web_address_is_no_bucket():
    with pytest.raises(
        ConfigError, match="vocab_file=https://h/v.txt is not in a bucket"
    ):
        storage.parse_path("config.tokenizer.vocab_file", "https://h/v.txt")


def test_a_url_without_its_library_names_the_package(monkeypatch):
    loaded = importlib.import_module("fsspec.registry")._registry
    monkeypatch.delitem(loaded, "s3", raising=False)
    monkeypatch.setitem(sys.modules, "s3fs", None)
    message = "^--workdir=s3://b/r: s3:// needs .*; pip install s3fs$"
    with pytest.raises(ConfigError, match=message):
        storage.parse_path("--workdir", "s3://b/r")


# ----------------------------------------------------------- all flags and config keys


def key(name):
    """Returns a function that sets a key of a config, and returns its value."""

    def build(path):
        return value(make_config(**{name.replace(".", "__"): path}), name)

    return build


def finetuning_key(name, prefix=""):
    def build(path):
        config = own.get_config()
        config.distill.update({"teacher": "teacher", "logits_weight": 1.0})
        is_list = name in ("data.dev", "data.test")
        given = (prefix + path,) if is_list else prefix + path
        config.update_from_flattened_dict({name: given})
        found = value(finetuning_config.from_config_dict(config), name)
        return (found[0] if is_list else found).removeprefix(prefix)

    return build


def value(config, name):
    return functools.reduce(getattr, name.split("."), config)


def source(path):
    return sources.find((f"files:{path}",))[0].files[0].path


def probe(path):
    return probes.read([f"stsb:{path}"], "--probes") and storage.parse_path("", path)


WAYS = {
    "--workdir": lambda path: cli.directory("workdir", path),
    "--model": lambda path: str(loading.local_path(path, "--model")),
    "config.branch_from": lambda path: branch._source(
        make_config(branch_from=f"{path}@5")
    )[0],
    "config.init_from": key("init_from"),
    "config.data.corpus_dir": key("data.corpus_dir"),
    "config.tokenizer.vocab_file": key("tokenizer.vocab_file"),
    "config.compilation_cache_dir": key("compilation_cache_dir"),
    "config.data.sources": source,
    "--probes": probe,
    "config.distill.teacher": finetuning_key("distill.teacher"),
    "config.data.train": finetuning_key("data.train", "csv:"),
    "config.data.dev[0]": finetuning_key("data.dev", "squad:"),
    "config.data.test[0]": finetuning_key("data.test", "conll:"),
}
# Keys and flags of plain text, which is no path or has its own row in WAYS.
TEXT_KEYS = (
    "branch_from sources probes header metric label labels glue index words tags"
)
TEXT_KEYS += " choices text positives"
TEXT_FLAGS = "name config topology push_to_hub text_bytes device ray"


@pytest.mark.parametrize("given_as", WAYS)
def test_every_path_has_its_normal_form(given_as, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    probe_data.write_stsb(tmp_path / "a")
    path = "a/dev.tsv" if given_as == "config.data.sources" else "a"
    assert WAYS[given_as](f"~/{path}/") == f"{tmp_path}/{path}"
    with pytest.raises(ConfigError, match="gs:/b/r' is not a URL; write gs://b/r") as e:
        WAYS[given_as]("gs:/b/r")
    assert str(e.value).startswith(given_as)


def test_no_key_or_flag_of_a_path_is_a_plain_string():
    package = ROOT / "bert_jax"
    schemas = ("config/schema.py", "finetuning/config.py")
    text = "".join((package / name).read_text() for name in schemas)
    keys = re.findall(r"^    (\w+): (?:\w+\[)*str\b", text, re.M)
    fields = [field for task in TASKS.values() for field in dataclasses.fields(task)]
    is_text = re.compile(r"^(?!.*(LocalOrUrl|KindAndPath)).*\bstr\b")
    keys += [field.name for field in fields if is_text.search(str(field.type))]
    assert len(keys) > 5 and set(keys) <= set(TEXT_KEYS.split())
    text = "".join(path.read_text() for path in package.rglob("*.py"))
    flags = re.findall(r"DEFINE_string\(\s*\"?(\w+)", text)
    assert len(flags) > 3 and set(flags) <= set(TEXT_FLAGS.split())


def test_flags_of_paths_are_normal_when_a_command_reads_them():
    program = """if True:
        import sys
        from bert_jax import cli
        flag = cli.define_path("output", "file to write")
        sys.argv = ["command", "--output=~root/a/"]
        cli.run(lambda: print(flag.value), "")
    """
    assert run_program(program).stdout == f"{ROOTS_HOME}/a\n"
