"""Models of the Hugging Face Hub: huggingface_hub's client against a local Hub."""

import os
import shlex
import subprocess
import sys

import pytest
from huggingface_hub import constants, hf_hub_download

from bert_jax import hub as hub_lib
from bert_jax.errors import ConfigError
from tests import fake_hub

NAME = "owner/small-bert"
FILES = {name: name.encode() for name in ("config.json", "vocab.txt", "tokenizer.json")}
FILES |= {"model.safetensors": bytes(1000), "1_Pooling/config.json": b"{}"}
OTHERS = {
    "pytorch_model.bin": bytes(9),
    "tf_model.h5": bytes(9),
    "onnx/model.onnx": bytes(9),
    "README.md": b"a card",
}


@pytest.fixture
def hub(monkeypatch, tmp_path):
    with fake_hub.Hub() as found:
        found.use(monkeypatch)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hf" / "hub"))
        found.add(f"models/{NAME}", FILES | OTHERS)
        yield found


def contents(directory):
    paths = (path for path in directory.rglob("*") if path.is_file())
    return {path.relative_to(directory).as_posix(): path.read_bytes() for path in paths}


def commit_of(hub, branch="main"):
    return hub.repositories[f"models/{NAME}"].refs[branch]


def test_only_the_files_that_are_read_are_downloaded_and_once(hub):
    directory = hub_lib.model(NAME, "--model")
    assert contents(directory) == FILES and directory.name == commit_of(hub)
    num_requests = hub.count("resolve")
    pinned = hub_lib.pinned(NAME, directory)
    assert pinned == f"{NAME}@{commit_of(hub)}"
    hub.faults[""] = [503] * 9  # a commit needs no network
    assert hub_lib.model(pinned, "--model") == directory
    assert hub_lib.pinned(pinned, directory) == pinned
    assert hub.count("resolve") == num_requests


@pytest.mark.parametrize("prefix", ["https://huggingface.co/", "hf://"])
def test_an_address_is_the_model_of_its_name(hub, prefix):
    assert hub_lib.model(prefix + NAME, "--model") == hub_lib.model(NAME, "--model")


def test_a_revision_and_a_renamed_model(hub):
    newer = FILES | {"config.json": b"newer"}
    hub.repositories[f"models/{NAME}"].commit(newer, "v2")
    directory = hub_lib.model(f"{NAME}@v2", "--model")
    assert contents(directory) == newer and directory.name == commit_of(hub, "v2")
    hub.renamed["small-bert"] = NAME
    assert contents(hub_lib.model("small-bert", "--model")) == FILES


def test_without_a_network_the_cache_is_read(hub, monkeypatch):
    directory = hub_lib.model(NAME, "--model")
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")  # nothing answers
    assert hub_lib.model(NAME, "--model") == directory
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert hub_lib.model(NAME, "--model") == directory


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("nothing/here", "--model=nothing/here (no directory here, so a model on the"),
        (
            "nothing",
            "does not exist, or is private: check the name, or log in with: hf",
        ),
        (f"{NAME}@v3", "there is no such branch, tag or commit"),
    ],
)
def test_a_model_that_does_not_exist_is_an_error(hub, path, message):
    with pytest.raises(ConfigError) as error:
        hub_lib.model(path, "--model")
    assert message in str(error.value)


def offline(hub, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    return "(HF_HUB_OFFLINE is set)"


def failing(hub, monkeypatch):
    hub.faults["GET /api"] = [503] * 5
    return "(the Hub answers 503)"


def unreachable(hub, monkeypatch):
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    return "Connection refused"


@pytest.mark.parametrize("prepare", [offline, failing, unreachable])
def test_the_reason_for_which_a_model_cannot_be_read_is_told(hub, prepare, monkeypatch):
    reason = prepare(hub, monkeypatch)
    with pytest.raises(ConfigError) as error:
        hub_lib.model(NAME, "--model")
    text = str(error.value)
    assert text.startswith(f"--model={NAME} is not a directory, and as a model on")
    assert reason in text and "\n" not in text


def test_the_command_in_the_error_makes_the_model_readable(hub, monkeypatch, tmp_path):
    """Other software leaves the cache like this that has read one file only."""
    hf_hub_download(NAME, "config.json")
    offline(hub, monkeypatch)
    with pytest.raises(ConfigError) as error:
        hub_lib.model(NAME, "--model")
    text = str(error.value)
    assert "(only a part of it is)" in text
    command = shlex.split(text.partition("reached, run: ")[2])
    program = f"{os.path.dirname(sys.executable)}/{command[0]}"
    subprocess.run(
        [program, *command[1:]],
        check=True,
        env=os.environ | hub.environment(tmp_path / "hf"),
        capture_output=True,
    )
    found = contents(hub_lib.model(NAME, "--model"))
    assert found.items() >= FILES.items() and not found.keys() & {"tf_model.h5"}


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (NAME, True),
        ("bert-base-uncased", True),
        ("owner/name@v1.0", True),
        ("runs/tinyy", False),  # because the directory runs exists
        ("/owner/name", False),
        ("~owner/name", False),
        ("gs://bucket/name", False),
        ("a name", False),
    ],
)
def test_names_of_models_and_local_paths(path, expected, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    assert hub_lib.is_model(path) == expected
