"""Tests of bert_jax.storage.own_files."""

import ast
import os
import re
import stat

import pytest

from bert_jax import storage
from bert_jax.checkpoint import workdir
from bert_jax.errors import ConfigError
from bert_jax.monitoring import writer
from tests.commands import ROOT

MODES = ("w", "wb", "a", "ab", "a+", "x", "xb", "r+")


@pytest.mark.parametrize("mode", MODES)
def test_links_are_neither_followed_nor_changed(tmp_path, mode):
    (tmp_path / "target").write_text("precious")
    (tmp_path / "link").symlink_to(tmp_path / "target")
    (tmp_path / "broken").symlink_to(tmp_path / "nowhere")
    for name in ("link", "broken"):
        with pytest.raises((ConfigError, FileExistsError), match="link|exists"):
            storage.open_own(tmp_path / name, mode)
    assert (tmp_path / "target").read_text() == "precious"
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize("mode", ["w", "ab", "a+"])
def test_only_regular_files_are_opened(tmp_path, mode):
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path / "fifo", "/dev/null"):
        with pytest.raises(ConfigError, match=f"{path} is not a regular file; remove"):
            storage.open_own(path, mode)


def test_a_new_file_is_written_as_by_open(tmp_path):
    with storage.open_own(tmp_path / "a", "w", encoding="utf-8") as file:
        file.write("\u00e9")
    with storage.open_own(tmp_path / "a", "ab") as file:
        file.write(b"b")
    open(tmp_path / "b", "w").close()
    assert (tmp_path / "a").read_bytes() == b"\xc3\xa9b"
    modes = {(tmp_path / name).stat().st_mode for name in "ab"}
    assert len(modes) == 1  # that of the umask


@pytest.mark.parametrize("name", ["bad_steps.jsonl", workdir.LOCK_FILE])
def test_files_of_a_workdir_are_not_written_through_links(tmp_path, name):
    (tmp_path / "target").write_text("precious")
    (tmp_path / name).symlink_to(tmp_path / "target")
    with pytest.raises(ConfigError, match=f"{name} is a link; remove it"):
        if name == workdir.LOCK_FILE:
            workdir.lock(str(tmp_path))
        else:
            writer.AppendOnlyFile(str(tmp_path / name)).write(b"{}\n")
    assert (tmp_path / "target").read_text() == "precious"


def test_no_other_function_of_the_package_opens_files_to_write():
    """Temporary files and os.devnull are not opened by a name that others choose."""
    found = []
    for path in sorted((ROOT / "bert_jax").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and writes(node):
                found.append(f"{path.relative_to(ROOT)}: {ast.unparse(node)}")
    assert found == [
        "bert_jax/storage/own_files.py:"
        " os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 438)"
    ]


def writes(call):
    """Returns whether a call opens a file to write, or may do so."""
    name = ast.unparse(call.func)
    if name == "os.open":
        return ast.unparse(call.args[0]) != "os.devnull"
    if name.endswith((".write_text", ".write_bytes", ".touch")):
        return True
    keywords = {keyword.arg: keyword.value for keyword in call.keywords}
    if name.rpartition(".")[2] != "open" or "opener" in keywords:
        return False
    modes = [*call.args, *filter(None, [keywords.get("mode")])]
    if name == "open" and not all(isinstance(x, ast.Constant) for x in modes[1:]):
        return True
    texts = [str(x.value) for x in modes if isinstance(x, ast.Constant)]
    return any(re.fullmatch("[rbt]*[wax+][bt+]*", text) for text in texts)


# --------------------------------------------------------------------- directories


def test_a_private_directory_is_made_and_used_again(tmp_path):
    path = tmp_path / "private"
    for _ in range(2):
        storage.private_directory(str(path))
        assert stat.S_IMODE(path.stat().st_mode) == 0o700


@pytest.mark.parametrize(
    "bits, message",
    [
        (0o777, "can be written to by other users .chmod go-w .*private"),
        (0o770, "can be written to by other users"),
        (0o2775, "can be written to by other users"),
    ],
)
def test_a_directory_that_others_can_write_to_is_refused(tmp_path, bits, message):
    path = tmp_path / "private"
    path.mkdir()
    path.chmod(bits)
    with pytest.raises(ConfigError, match=f"{path} {message}"):
        storage.private_directory(str(path))
    assert stat.S_IMODE(path.stat().st_mode) == bits
    path.chmod(bits & ~0o22)  # as the message says
    storage.private_directory(str(path))
