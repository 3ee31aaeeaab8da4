"""Models of the Hugging Face Hub, read and pushed by its client, with a local Hub."""

import os
import re
import shlex
import subprocess
import sys

import pytest
from huggingface_hub import constants, hf_hub_download

from bert_jax.errors import ConfigError
from bert_jax.interop import hub_models as hub_lib
from tests import fake_hub
from tests.commands import capture, error_of, run_well

NAME = "owner/small-bert"
FILES = {name: name.encode() for name in ("config.json", "vocab.txt", "tokenizer.json")}
FILES |= {"model.safetensors": bytes(1000), "1_Pooling/config.json": b"{}"}
FILES |= {"decisions.json": b"{}"}  # of a fine-tuned model
OTHERS = {
    "pytorch_model.bin": bytes(9),
    "tf_model.h5": bytes(9),
    "onnx/model.onnx": bytes(9),
    "README.md": b"a card",
}


@pytest.fixture
def hub(hub):
    hub.add(f"models/{NAME}", FILES | OTHERS)
    return hub


def contents(directory):
    paths = (path for path in directory.rglob("*") if path.is_file())
    return {path.relative_to(directory).as_posix(): path.read_bytes() for path in paths}


def commit_of(hub, branch="main"):
    return hub.repositories[f"models/{NAME}"].refs[branch]


def test_only_the_files_that_are_read_are_downloaded_and_once(hub):
    directory = hub_lib.model(NAME, "--model")
    assert contents(directory) == FILES and directory.name == commit_of(hub)
    num_requests = hub.count("resolve")
    pinned = f"{NAME}@{commit_of(hub)}"
    hub.faults[""] = [503] * 9  # a commit needs no network
    assert hub_lib.model(pinned, "--model") == directory
    assert hub.count("resolve") == num_requests


def test_a_revision_and_a_renamed_model(hub):
    newer = FILES | {"config.json": b"newer"}
    hub.repositories[f"models/{NAME}"].commit(newer, "v2")
    directory = hub_lib.model(f"{NAME}@v2", "--model")
    assert contents(directory) == newer and directory.name == commit_of(hub, "v2")
    for prefix in ("https://huggingface.co/", "hf://"):
        assert hub_lib.model(f"{prefix}{NAME}@v2", "--model") == directory
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
    environment = os.environ | hub.environment(tmp_path / "hf")
    capture(program, *command[1:], check=True, env=environment)
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


EXPORT = {"README.md": b"---\ntags:\n- bert\n---\n", "config.json": b"{}"}
EXPORT["model.safetensors"] = bytes(range(256)) * 100


@pytest.fixture
def directory(tmp_path):
    (tmp_path / "export").mkdir()
    for name, content in EXPORT.items():
        (tmp_path / "export" / name).write_bytes(content)
    return tmp_path / "export"


def test_a_push_makes_a_commit_and_a_tag_of_its_step(hub, directory):
    to = hub_lib.target("user/name", None)
    url = hub_lib.push(directory, to, 3000)
    repository = hub.repositories["models/user/name"]
    assert repository.files("step-3000") == repository.files("main") == EXPORT
    assert url == f"{hub.url}/user/name/commit/{repository.refs['main']}"
    assert repository.private is None
    (directory / "config.json").write_bytes(b"{1}")
    hub_lib.push(directory, to, 4000)
    assert repository.files("step-3000") == EXPORT
    assert repository.files("step-4000") == EXPORT | {"config.json": b"{1}"}
    uploads = hub.count("PUT /upload/")
    assert uploads == 1  # unchanged weights are not sent again


def test_a_push_of_the_same_step_moves_its_tag(hub, directory):
    to = hub_lib.target("user/name", True)
    hub_lib.push(directory, to, 7)
    repository = hub.repositories["models/user/name"]
    assert repository.private is True
    first = repository.refs["step-7"]
    hub_lib.push(directory, to, 7)
    assert repository.refs["step-7"] == first
    (directory / "config.json").write_bytes(b"{1}")
    hub_lib.push(directory, to, 7)
    assert repository.refs["step-7"] == repository.refs["main"] != first


def test_a_branch_has_its_own_tags(hub, directory):
    hub_lib.push(directory, hub_lib.target("team/name@large", False), 7)
    repository = hub.repositories["models/team/name"]
    assert repository.private is False
    assert repository.files("large") == repository.files("large-step-7") == EXPORT
    assert repository.files("main") == {}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ({"POST /api/models/.*/commit": [403]}, "403: .*the token has no permission"),
        ({"POST /api/models/.*/tag": [404]}, "does not exist"),
        ({"POST /api/repos/create": [500]}, "the Hub answers 500"),
    ],
)
def test_a_failed_push_says_how_to_push_again(hub, directory, tmp_path, fault, message):
    hub.faults = fault
    to = hub_lib.target("user/name", True)
    with pytest.raises(ConfigError, match=message) as caught:
        hub_lib.push(directory, to, 7)
    text = str(caught.value)
    assert "\n" not in text and "ignature" not in text and fake_hub.TOKEN not in text
    again = text.split(f"the export in {directory} is complete: push it again with: ")[
        1
    ]
    assert shlex.quote(str(directory)) in again
    hub.faults = {}
    environment = os.environ | hub.environment(tmp_path)
    subprocess.run(again, shell=True, check=True, env=environment, capture_output=True)
    repository = hub.repositories["models/user/name"]
    assert repository.files("step-7") == EXPORT and repository.private is True


def test_an_account_without_access_is_an_error(hub, directory, monkeypatch):
    hub_lib.check_account()
    with pytest.raises(ConfigError, match="other/name: .*the token has no permission"):
        hub_lib.push(directory, hub_lib.target("other/name", None), 7)
    hub.use(monkeypatch, token="hf_wrong")
    with pytest.raises(ConfigError, match="the token is not valid, .*: hf auth login"):
        hub_lib.check_account()
    hub.use(monkeypatch, token=None)
    with pytest.raises(ConfigError, match="there is no token; log in with: hf auth"):
        hub_lib.check_account()
    hub.use(monkeypatch)
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(ConfigError, match="without a network, export without --push"):
        hub_lib.check_account()


@pytest.mark.parametrize("name", ["name", "user/", "user/name/x", "https://x/y"])
def test_a_name_that_is_not_of_a_repository_is_an_error(name):
    with pytest.raises(ConfigError, match="write USER/NAME or USER/NAME@BRANCH"):
        hub_lib.target(name, None)


def test_export_pushes_what_it_wrote(trained, tmp_path):
    arguments = [f"--workdir={trained / 'run'}", f"--output={tmp_path / 'out'}"]
    arguments.append("--push_to_hub=user/tiny")
    with fake_hub.Hub() as hub:
        environment = hub.environment(tmp_path / "home")
        stdout = run_well("bert_jax.export", *arguments, "--private", **environment)
        repository = hub.repositories["models/user/tiny"]
    written = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    assert repository.files("step-20") == written and repository.private is True
    assert f"Pushed to {hub.url}/user/tiny/commit/" in stdout
    card = written["README.md"].decode()
    assert 'AutoModel.from_pretrained("user/tiny")' in card
    assert 'revision="step-20"' in card and "(loss_curves.png)" in card
    assert written["loss_curves.png"].startswith(b"\x89PNG")
    assert fake_hub.TOKEN.encode() not in b"".join(written.values())


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("--push_to_hub=user/tiny", "there is no token; log in with: hf auth login"),
        ("--dry_run", "--dry_run needs --push_to_hub=USER/NAME"),
        ("--push_to_hub=a/b --output=gs://b/o", "must be local with --push_to_hub"),
    ],
)
def test_a_push_that_cannot_work_is_an_error_before_the_export(tmp_path, flag, message):
    arguments = [f"--workdir={tmp_path / 'run'}", f"--output={tmp_path / 'out'}"]
    arguments += flag.split()
    with fake_hub.Hub() as hub:
        environment = hub.environment(tmp_path / "home", token=None)
        assert message in error_of("bert_jax.export", *arguments, **environment)
        assert not hub.requests


@pytest.mark.slow
def test_a_dry_run_sends_nothing(trained, tmp_path):
    arguments = [f"--workdir={trained / 'run'}", f"--output={tmp_path / 'out'}"]
    arguments.append("--push_to_hub=user/tiny")
    with fake_hub.Hub() as hub:
        environment = hub.environment(tmp_path / "home", token=None)
        stdout = run_well("bert_jax.export", *arguments, "--dry_run", **environment)
        assert not hub.requests
    assert not (tmp_path / "out").exists()  # the same command then pushes
    assert re.search(r"\n  model.safetensors +[\d,]+ bytes\n", stdout)
    assert "to user/tiny on the Hugging Face Hub (branch main, tag step-20;" in stdout
    assert (
        "a new repository is public, or as" in stdout and "Nothing was sent" in stdout
    )
