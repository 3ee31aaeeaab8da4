"""Tests of hub_datasets.py: the library's client against a Hub on this machine."""

import collections
import json
import os
import re

import huggingface_hub
import pytest

from bert_jax import storage
from bert_jax.data.sources import hub_datasets, sources
from bert_jax.errors import ConfigError
from tests.conftest import make_config
from tests.corpora import parquet_bytes
from tests.data.sources.test_parquet import documents

TEXTS = [f"Text {i} is first.\nIt has number {i}." for i in range(100)]
CARD = b"---\nlicense: mit\n---\n# A data set\n"


def table(texts, rows=10, **columns):
    return parquet_bytes({"id": range(len(texts)), "text": texts} | columns, rows)


FILES = {
    "README.md": CARD,
    "data/train-00000-of-00002.parquet": table(TEXTS[:60]),
    "data/train-00001-of-00002.parquet": table(TEXTS[60:]),
    "data/test-00000-of-00001.parquet": table(TEXTS[:3]),
}


def save(directory, files):
    for name, content in files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return directory


@pytest.fixture
def expected(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    return documents(f"jsonl:{path}#text")


def test_hub_and_snapshot_give_the_documents_of_json_lines(hub, expected, tmp_path):
    hub.add("datasets/owner/name", FILES)
    assert documents("hf:owner/name:train#text") == expected
    assert documents("hf:owner/name") == expected
    assert documents("hf:owner/name:test") == expected[:3]
    num_requests = len(hub.requests)
    snapshot = save(tmp_path / "snapshot", FILES)
    assert documents(f"hf:{snapshot}:train#text") == expected
    assert documents(f"hf:{snapshot}/:test") == expected[:3]
    assert len(hub.requests) == num_requests


def test_a_file_is_read_by_ranges_of_bytes(hub):
    other = [os.urandom(300_000) for _ in TEXTS]
    content = table(TEXTS, 10, other=other)
    commit = hub.add("datasets/owner/name", {"train.parquet": content}).refs["main"]
    (found,) = sources.find(("hf:owner/name#text",))
    (file,) = found.files
    assert file.path == f"hf://datasets/owner/name@{commit}/train.parquet"
    assert found.commit == commit and found.kind.format == "hf#text"
    with storage.Reader(file.path) as reader:
        assert reader.seek(0, os.SEEK_END) == len(content) == file.num_bytes
        reader.seek(-4, os.SEEK_CUR)
        assert reader.read() == b"PAR1"
        reader.seek(0)
        assert reader.read(4) == b"PAR1"
    assert hub.count(r"GET /cdn/\w+ bytes") == 2
    assert hub.count(r"GET /cdn/\w+$") == 0
    hub.requests.clear()
    data, counts = make_config().data, collections.Counter()
    rows = sources.read("hf:owner/name#text", data, counts, [(file.path, (8, 9))])
    assert [row.lines[0] for row in rows] == [
        f"Text {i} is first." for i in range(80, 90)
    ]
    ranges = [re.findall(r"bytes=(\d+)-(\d+)", x) for x in hub.requests if "/cdn" in x]
    fetched = sum(int(end) - int(start) + 1 for ((start, end),) in ranges)
    assert fetched < len(content) / 2


def test_the_librarys_cache_is_read_offline(hub, expected, tmp_path, monkeypatch):
    cache = tmp_path / "cache"
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(cache))
    hub.add("datasets/owner/name", FILES)
    huggingface_hub.snapshot_download(
        "owner/name", repo_type="dataset", ignore_patterns="*00001-of-00002*"
    )
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    hub.requests.clear()
    with pytest.raises(ConfigError, match="lacks 1 of its 2 files, such as .*00001-of"):
        documents("hf:owner/name")
    assert documents("hf:owner/name:test") == expected[:3]
    with pytest.raises(ConfigError, match="not in the cache .* hf download other/name"):
        documents("hf:other/name")
    assert not hub.requests


def test_a_revision_is_read_at_its_recorded_commit(hub, tmp_path, capsys):
    repository = hub.add("datasets/owner/name", {"train.parquet": table(TEXTS)})
    record = str(tmp_path / "commits.json")
    first = hub_datasets.find("owner/name", record)
    changed = repository.commit({"train.parquet": table(TEXTS[:5])})
    assert hub_datasets.find("owner/name", record) == first
    assert f"main has changed to {changed}; resuming with" in capsys.readouterr().out
    paths, commit = hub_datasets.find("owner/name", None)
    assert commit == changed and paths != first[0]
    pinned, _ = hub_datasets.find(f"owner/name@{first[1]}", None)
    assert pinned == first[0]
    repository.refs["refs/convert/parquet"] = commit
    assert hub_datasets.find("owner/name@refs/convert/parquet", None)[0] == paths
    assert hub_datasets.find("owner/name@refs/convert/parquet", record)[0] == paths


def names(tmp_path, argument, files, card=CARD):
    directory = save(tmp_path, dict.fromkeys(files, b"") | {"README.md": card})
    paths, commit = hub_datasets.find(f"{directory}{argument}", None)
    assert commit is None
    return [os.path.relpath(path, directory) for path in paths]


LAYOUTS = [
    (["train.parquet", "test.parquet"], ":test", ["test.parquet"]),
    (["0000.parquet", "0001.parquet"], "", ["0000.parquet", "0001.parquet"]),
    (["train/0.parquet", "dev/0.parquet"], ":dev", ["dev/0.parquet"]),
    (["data/train-1-of-1-0ab.parquet"], "", ["data/train-1-of-1-0ab.parquet"]),
    (["a/train-1.parquet", "b/train-1.parquet"], "/b", ["b/train-1.parquet"]),
    (["a/train-1.parquet", "default/train-1.parquet"], "", ["default/train-1.parquet"]),
    (["a/train/0.parquet", "b/train/0.parquet"], "/a", ["a/train/0.parquet"]),
    (["default/partial-train/0.parquet"], ":partial-train", None),
    (["2024.en/train-1-of-1.parquet"], "", ["2024.en/train-1-of-1.parquet"]),
]


@pytest.mark.parametrize(("files", "argument", "found"), LAYOUTS)
def test_splits_and_configs_by_layout(tmp_path, files, argument, found):
    assert names(tmp_path, argument, files) == (found or files)


YAML = b"""---
configs:
- config_name: en
  default: true
  data_files:
  - split: train
    path: ["x/*.parquet", "y/part-0.parquet"]
  - split: dev
    path: y/part-1.parquet
- config_name: all
  data_files: "**/*.parquet"
- config_name: lines
  data_files: {train: a.jsonl}
---
# Text
"""
YAML_FILES = ["x/0.parquet", "x/1.parquet", "x/z/2.parquet", "y/part-0.parquet"]
YAML_FILES += ["y/part-1.parquet", "a.jsonl"]


@pytest.mark.parametrize(
    ("argument", "found"),
    [
        ("", ["x/0.parquet", "x/1.parquet", "y/part-0.parquet"]),
        ("/en:dev", ["y/part-1.parquet"]),
        ("/all", YAML_FILES[:5]),
        ("/x", ["x/0.parquet", "x/1.parquet"]),  # a folder, but no config
    ],
)
@pytest.mark.parametrize("folder", [None, "en", "all"])
def test_splits_and_configs_of_the_card(tmp_path, argument, found, folder):
    if folder:  # of the name of a config
        save(tmp_path, {f"{folder}/train-1.csv": b""})
    assert names(tmp_path, argument, YAML_FILES, YAML) == found


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("/de", "has no config '.*de'; name one of: all, en, lines"),
        ("/en:test", "has no split 'test'; use one of: dev, train"),
        ("/lines", "keeps a.jsonl; .*refs/convert/parquet may have a Parquet copy"),
    ],
)
def test_a_wrong_config_or_split_is_an_error(tmp_path, argument, message):
    with pytest.raises(ConfigError, match=message):
        names(tmp_path, argument, YAML_FILES, YAML)


def test_a_choice_or_a_file_that_is_missing_is_an_error(tmp_path):
    several = ["a/train-1.parquet", "b/train-1.parquet"]
    with pytest.raises(ConfigError, match="has several configs; name one of: a, b"):
        names(tmp_path / "1", "", several)
    with pytest.raises(ConfigError, match="has no Parquet file; .* use jsonl: or text"):
        names(tmp_path / "2", "", ["train.csv"])
    with pytest.raises(
        ConfigError, match="no config 'x'; name none, because it has no"
    ):
        names(tmp_path / "3", "/x", ["train.parquet"])
    with pytest.raises(ConfigError, match="metadata that is not YAML"):
        names(tmp_path / "4", "", ["train.parquet"], b"---\n{: :\n---\n")


@pytest.mark.parametrize("text", ["title: a: b", "- a", "configs: yes"])
def test_a_directory_may_be_a_link_and_lie_in_a_project(tmp_path, text):
    (tmp_path / "README.md").write_text(f"---\n{text}\n---\n")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/train.parquet").touch()
    (tmp_path / "wiki").mkdir()
    (tmp_path / "wiki/data").symlink_to(tmp_path / "elsewhere")
    found, _ = hub_datasets.find(str(tmp_path / "wiki"), None)
    assert found == [f"{tmp_path}/wiki/data/train.parquet"]


@pytest.mark.parametrize(
    "data_files",
    [b"[{split: train}]", b"[{split: train, path: train.parquet}, test.parquet]", b"1"],
)
def test_incomplete_metadata_is_an_error_if_its_config_is_read(tmp_path, data_files):
    card = b"---\nconfigs:\n- config_name: en\n  data_files: %s\n" % data_files
    card += b"- config_name: de\n  data_files: train.parquet\n---\n"
    message = f"{tmp_path}/README.md has metadata that is not YAML, or data_files"
    with pytest.raises(ConfigError, match=re.escape(message)):
        names(tmp_path, "/en", ["train.parquet"], card)
    assert names(tmp_path, "/de", ["train.parquet"], card)


def test_a_repository_is_named_only_if_it_is_read(hub, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save(tmp_path / "data/local", FILES)
    save(tmp_path / "data/configs", {"data/en/train-1.parquet": table(TEXTS)})
    hub.add("datasets/data/remote", {"en/train-1.parquet": table(TEXTS)})
    for name, repository in (
        ("data/local", None),
        ("data/configs/en", None),
        ("data/remote", "data/remote"),
        ("data/remote/en:train#text", "data/remote"),
    ):
        (found,) = sources.find((f"hf:{name}",))
        assert hub_datasets.repository(f"hf:{name}") == repository
        assert bool(found.commit) == bool(repository)
    assert hub_datasets.repository("text:data/remote") is None


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("hf:owner/other", "hf:owner/other does not exist, or is private: .*hf auth"),
        ("hf:owner/name@v1", "hf:owner/name@v1: there is no such branch, tag or"),
        ("hf:owner/name:dev", "has no split 'dev'; use one of: test, train"),
        ("hf:owner/name#id", "hf://.* has no column 'id' of text .*: text"),
        ("hf:owner/gated", "access is restricted; accept the conditions .* hf auth"),
        ("hf:owner/gated-card", "README.md: access is restricted; .* hf auth login"),
        ("hf:owner", "neither a directory nor a dataset; write hf:OWNER/NAME"),
        ("hf:owner/two", "no single column of text; append .*: body, title"),
    ],
)
def test_errors_of_the_hub_are_one_line(hub, monkeypatch, spec, message):
    hub.use(monkeypatch, token=None)
    hub.add("datasets/owner/name", FILES)
    hub.add("datasets/owner/gated", {"train.parquet": table(TEXTS)}, is_gated=True)
    hub.add("datasets/owner/gated-card", {"README.md": CARD}, is_gated=True)
    two = parquet_bytes({"body": ["a"], "title": ["b"]})
    hub.add("datasets/owner/two", {"train.parquet": two})
    with pytest.raises(ConfigError, match=message) as caught:
        documents(spec)
    assert "\n" not in str(caught.value)
    assert "ignature" not in str(caught.value)


def test_a_hub_that_cannot_be_reached_is_one_line(hub, monkeypatch):
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(ConfigError, match="without a network, use a local copy, as hf"):
        documents("hf:owner/name")
