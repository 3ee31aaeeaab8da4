"""Tests of push.py: huggingface_hub's client against a Hub on this machine."""

import os
import re
import shlex
import subprocess

import pytest

from bert_jax.errors import ConfigError
from bert_jax.interop import push
from tests import fake_hub
from tests.commands import run, run_well

FILES = {"README.md": b"---\ntags:\n- bert\n---\n", "config.json": b"{}"}
FILES["model.safetensors"] = bytes(range(256)) * 100


@pytest.fixture
def hub(monkeypatch):
    with fake_hub.Hub() as found:
        found.use(monkeypatch)
        yield found


@pytest.fixture
def directory(tmp_path):
    (tmp_path / "export").mkdir()
    for name, content in FILES.items():
        (tmp_path / "export" / name).write_bytes(content)
    return tmp_path / "export"


def test_a_push_makes_a_commit_and_a_tag_of_its_step(hub, directory):
    to = push.target("user/name", None)
    url = push.push(directory, to, 3000)
    repository = hub.repositories["models/user/name"]
    assert repository.files("step-3000") == repository.files("main") == FILES
    assert url == f"{hub.url}/user/name/commit/{repository.refs['main']}"
    assert repository.private is None
    (directory / "config.json").write_bytes(b"{1}")
    push.push(directory, to, 4000)
    assert repository.files("step-3000") == FILES
    assert repository.files("step-4000") == FILES | {"config.json": b"{1}"}
    uploads = hub.count("PUT /upload/")
    assert uploads == 1  # unchanged weights are not sent again


def test_a_push_of_the_same_step_moves_its_tag(hub, directory):
    to = push.target("user/name", True)
    push.push(directory, to, 7)
    repository = hub.repositories["models/user/name"]
    assert repository.private is True
    first = repository.refs["step-7"]
    push.push(directory, to, 7)
    assert repository.refs["step-7"] == first
    (directory / "config.json").write_bytes(b"{1}")
    push.push(directory, to, 7)
    assert repository.refs["step-7"] == repository.refs["main"] != first


def test_a_branch_has_its_own_tags(hub, directory):
    push.push(directory, push.target("team/name@large", False), 7)
    repository = hub.repositories["models/team/name"]
    assert repository.private is False
    assert repository.files("large") == repository.files("large-step-7") == FILES
    assert repository.files("main") == {}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ({"POST /api/models/.*/commit": [403]}, "the token has no permission .403"),
        ({"POST /api/models/.*/tag": [404]}, "does not exist"),
        ({"POST /api/repos/create": [500]}, "the Hub answers 500"),
    ],
)
def test_a_failed_push_says_how_to_push_again(hub, directory, tmp_path, fault, message):
    hub.faults = fault
    to = push.target("user/name", True)
    with pytest.raises(ConfigError, match=message) as caught:
        push.push(directory, to, 7)
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
    assert repository.files("step-7") == FILES and repository.private is True


def test_a_repository_of_others_is_an_error(hub, directory):
    with pytest.raises(ConfigError, match="other/name: the token has no permission"):
        push.push(directory, push.target("other/name", None), 7)


def test_a_token_that_is_missing_or_wrong_is_an_error(hub, monkeypatch):
    push.check_account()
    hub.use(monkeypatch, token="hf_wrong")
    with pytest.raises(ConfigError, match="the token is not valid .*: hf auth login"):
        push.check_account()
    hub.use(monkeypatch, token=None)
    with pytest.raises(ConfigError, match="there is no token; log in with: hf auth"):
        push.check_account()
    hub.use(monkeypatch)
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(ConfigError, match="without a network, export without --push"):
        push.check_account()


@pytest.mark.parametrize("name", ["name", "user/", "user/name/x", "https://x/y"])
def test_a_name_that_is_not_of_a_repository_is_an_error(name):
    with pytest.raises(ConfigError, match="write USER/NAME or USER/NAME@BRANCH"):
        push.target(name, None)


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
        (
            "--push_to_hub=a/b --output=gs://b/o",
            "--push_to_hub needs a local directory",
        ),
    ],
)
def test_a_push_that_cannot_work_is_an_error_before_the_export(tmp_path, flag, message):
    arguments = [f"--workdir={tmp_path / 'run'}", f"--output={tmp_path / 'out'}"]
    arguments += flag.split()
    with fake_hub.Hub() as hub:
        environment = hub.environment(tmp_path / "home", token=None)
        failed = run("bert_jax.export", *arguments, **environment)
        assert not hub.requests
    assert failed.returncode == 2 and failed.stderr.count("\n") == 1
    assert message in failed.stderr


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
