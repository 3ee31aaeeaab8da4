"""Tests of bert_jax.training.compilation_cache."""

import os
import pathlib
import stat

import jax
import pytest

from bert_jax import storage
from bert_jax.errors import ConfigError
from bert_jax.training import compilation_cache
from tests.commands import run_well, small_run
from tests.runs import assert_same_bits

KEYS = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")


@pytest.fixture(autouse=True)
def no_cache_of_jax():
    """Hides the cache of the tests, which JAX has opened already, and restores it."""
    before = {key: getattr(jax.config, key) for key in KEYS}
    jax.config.update("jax_compilation_cache_dir", None)
    yield
    for key, value in before.items():
        jax.config.update(key, value)


def directory_of_jax():
    return jax.config.jax_compilation_cache_dir


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_without_a_directory_there_is_no_cache():
    jax.config.update("jax_compilation_cache_dir", "/elsewhere")  # of JAX's variable
    assert compilation_cache.enable("", "runs/a") == "cache:  none"
    assert directory_of_jax() is None


def test_auto_is_a_private_directory_beside_the_workdir(tmp_path):
    line = compilation_cache.enable("auto", str(tmp_path / "runs" / "a"))
    cache = tmp_path / "runs" / ".compilation_cache"
    (directory,) = cache.iterdir()
    assert line == f"cache:  {directory}" and directory_of_jax() == str(directory)
    assert mode(cache) == mode(directory) == 0o700
    assert not list(directory.iterdir())
    jax.config.update("jax_compilation_cache_dir", None)
    assert compilation_cache.enable("auto", str(tmp_path / "runs" / "b")) == line
    # Programs that compile fast are kept too.
    assert jax.config.jax_persistent_cache_min_compile_time_secs == 0


def test_auto_leaves_a_directory_that_jax_has_from_its_variable(tmp_path):
    jax.config.update("jax_compilation_cache_dir", "/elsewhere")
    line = compilation_cache.enable("auto", str(tmp_path / "a"))
    assert line == "cache:  /elsewhere" and not list(tmp_path.iterdir())


@pytest.mark.parametrize("bits", [0o770, 0o702])
def test_auto_is_none_if_other_users_can_write_to_it(tmp_path, bits):
    cache = tmp_path / ".compilation_cache"
    cache.mkdir()
    cache.chmod(bits)
    line = compilation_cache.enable("auto", str(tmp_path / "a"))
    assert line == f"cache:  none, because other users can write to {cache}"
    assert directory_of_jax() is None and mode(cache) == bits


def test_auto_removes_the_permission_of_others_to_read(tmp_path):
    cache = tmp_path / ".compilation_cache"
    cache.mkdir()
    cache.chmod(0o755)
    line = compilation_cache.enable("auto", str(tmp_path / "a"))
    assert line.startswith(f"cache:  {cache}/") and mode(cache) == 0o700


@pytest.mark.parametrize("bits", [0o777, 0o775, 0o2775])
def test_auto_is_none_if_other_users_can_replace_it(tmp_path, bits):
    above = tmp_path / "runs"
    (above / "b").mkdir(parents=True)
    above.chmod(bits)
    for workdir in (above / "a", above / "b" / "a"):
        line = compilation_cache.enable("auto", str(workdir))
        assert line == f"cache:  none, because other users can write to {above}"
    assert not list(above.rglob(".compilation_cache"))
    above.chmod(0o1777)  # as /tmp: only an owner can rename or remove
    line = compilation_cache.enable("auto", str(above / "a"))
    assert line.startswith(f"cache:  {above}")


def test_auto_is_none_if_it_is_a_link(tmp_path):
    cache = tmp_path / ".compilation_cache"
    (tmp_path / "private").mkdir(mode=0o700)
    cache.symlink_to(tmp_path / "private")
    line = compilation_cache.enable("auto", str(tmp_path / "a"))
    assert line == f"cache:  none, because {cache} is a link"
    assert not list((tmp_path / "private").iterdir())


def test_auto_is_none_if_it_or_a_directory_above_belongs_to_another_user(
    tmp_path, monkeypatch
):
    compilation_cache.enable("auto", str(tmp_path / "runs" / "a"))
    jax.config.update("jax_compilation_cache_dir", None)
    owners = {}
    lstat = pathlib.Path.lstat

    def with_owner(path):
        fields = list(lstat(path))
        fields[stat.ST_UID] = owners.get(path, fields[stat.ST_UID])
        return os.stat_result(fields)

    monkeypatch.setattr(pathlib.Path, "lstat", with_owner)
    for path in (tmp_path, tmp_path / "runs", tmp_path / "runs/.compilation_cache"):
        owners = {path: os.geteuid() + 1}
        line = compilation_cache.enable("auto", str(tmp_path / "runs" / "a"))
        assert line == f"cache:  none, because {path} belongs to another user"
    assert directory_of_jax() is None
    owners = {tmp_path: 0}  # root can write anywhere
    line = compilation_cache.enable("auto", str(tmp_path / "runs" / "a"))
    assert line.startswith(f"cache:  {tmp_path}")


def test_auto_checks_and_uses_the_directories_that_links_lead_to(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "runs")
    runs = tmp_path / "runs"
    runs.mkdir()
    line = compilation_cache.enable("auto", str(tmp_path / "link" / "a"))
    assert line.startswith(f"cache:  {runs}/")
    jax.config.update("jax_compilation_cache_dir", None)
    runs.chmod(0o777)
    line = compilation_cache.enable("auto", str(tmp_path / "link" / "a"))
    assert line == f"cache:  none, because other users can write to {runs}"


def test_auto_is_none_where_no_directory_can_be_made(tmp_path):
    (tmp_path / "file").touch()
    for workdir in (str(tmp_path / "file" / "a"), "/proc/nope/a"):
        line = compilation_cache.enable("auto", workdir)
        assert line.startswith("cache:  none, because") and "be written to (" in line
    line = compilation_cache.enable("auto", "gs://bucket/a")
    assert line == "cache:  none, because the workdir is in a bucket"
    assert directory_of_jax() is None


def test_a_bucket_keeps_no_programs_that_compile_fast(monkeypatch):
    before = jax.config.jax_persistent_cache_min_compile_time_secs
    assert before > 0
    monkeypatch.setattr(storage, "write", lambda path, data: None)
    line = compilation_cache.enable("gs://bucket/cache", "gs://bucket/a")
    assert line == "cache:  gs://bucket/cache" and directory_of_jax() == line[8:]
    assert jax.config.jax_persistent_cache_min_compile_time_secs == before


def test_other_versions_and_other_cpus_have_other_directories(monkeypatch):
    found = [compilation_cache._digest(), compilation_cache._digest()]
    monkeypatch.setattr(compilation_cache, "_cpu_features", lambda: "flags: other")
    found.append(compilation_cache._digest())
    monkeypatch.setattr("importlib.metadata.version", lambda name: "0.0.0")
    found.append(compilation_cache._digest())
    assert found[0] == found[1] and len(set(found)) == 3


@pytest.mark.parametrize("name", ["/proc/nope", "/dev/null"])
def test_a_named_directory_that_is_not_writable_is_an_error(name):
    with pytest.raises(ConfigError, match=f"compilation_cache_dir='{name}': "):
        compilation_cache.enable(name, "runs/a")
    assert directory_of_jax() is None


def test_a_named_directory_is_made_private_and_may_belong_to_a_group(tmp_path):
    directory = tmp_path / "a" / "b"
    line = compilation_cache.enable(str(directory), "runs/a")
    assert line == f"cache:  {directory}" and mode(directory) == 0o700
    directory.chmod(0o770)
    compilation_cache.enable(str(directory), "runs/a")
    directory.chmod(0o707)
    with pytest.raises(ConfigError, match="all users can write to it.*chmod o-w"):
        compilation_cache.enable(str(directory), "runs/a")


@pytest.mark.slow
def test_a_second_run_compiles_nothing_and_has_the_same_bits(trained, tmp_path):
    """The cache has the same files after the second run as after the first."""
    found = []
    for name in ("first", "second"):
        arguments = [*small_run(trained), f"--workdir={tmp_path / name}"]
        stdout = run_well("bert_jax.train", *arguments, JAX_COMPILATION_CACHE_DIR="")
        (directory,) = (tmp_path / ".compilation_cache").iterdir()
        assert f"cache:  {directory}\n" in stdout
        found.append({path.name for path in directory.glob("*-cache")})
    steps = [name for name in found[0] if name.startswith("jit_train_step-")]
    assert len(steps) == 1 and len(found[0]) > 10 and found[0] == found[1]
    assert_same_bits(tmp_path / "first", tmp_path / "second", 60)
    # A program that a kill has truncated is compiled again.
    path = directory / steps[0]
    path.write_bytes(path.read_bytes()[:1000])
    arguments = [*small_run(trained), f"--workdir={tmp_path / 'third'}"]
    run_well("bert_jax.train", *arguments, JAX_COMPILATION_CACHE_DIR="")
    assert_same_bits(tmp_path / "first", tmp_path / "third", 60)
