"""Tests of the cache of bert_jax.training.compilation."""

import os
import stat

import jax
import pytest

from bert_jax.errors import ConfigError
from bert_jax.training import compilation
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


@pytest.fixture
def home(tmp_path, monkeypatch):
    """The home directory, in which the default cache is."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    return tmp_path


def directory_of_jax():
    return jax.config.jax_compilation_cache_dir


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_auto_leaves_a_directory_that_jax_has_from_its_variable(home):
    jax.config.update("jax_compilation_cache_dir", "/elsewhere")
    assert compilation.enable_cache("auto") == "cache:  /elsewhere"
    assert not list(home.iterdir())


@pytest.mark.parametrize("variable", [None, "relative/path", "xdg"])
def test_auto_is_a_private_directory_of_this_user(home, monkeypatch, variable):
    cache = home / ".cache"
    if variable:
        cache = home / variable if variable == "xdg" else cache
        value = str(cache) if variable == "xdg" else variable
        monkeypatch.setenv("XDG_CACHE_HOME", value)
    line = compilation.enable_cache("auto")
    (directory,) = (cache / "bert_jax").iterdir()
    assert line == f"cache:  {directory}" and directory_of_jax() == str(directory)
    assert mode(cache) == mode(cache / "bert_jax") == 0o700
    assert not list(directory.iterdir())
    jax.config.update("jax_compilation_cache_dir", None)
    assert compilation.enable_cache("auto") == line
    # Programs that compile fast are kept too.
    assert jax.config.jax_persistent_cache_min_compile_time_secs == 0


def others_can_write(cache):
    cache.mkdir()
    cache.chmod(0o770)
    return "can be written to by other users"


def is_a_link(cache):
    (cache.parent / "private").mkdir(mode=0o700)
    cache.symlink_to(cache.parent / "private")
    return "is a link"


def is_a_file(cache):
    cache.touch()
    return "is not a directory"


DIR = "compilation_cache_dir"
PROBLEMS = [others_can_write, is_a_link, is_a_file]


@pytest.mark.parametrize("make", PROBLEMS)
def test_a_directory_that_is_not_private_is_not_used(home, make):
    cache = home / ".cache" / "bert_jax"
    cache.parent.mkdir()
    problem = make(cache)
    line = compilation.enable_cache("auto")
    assert line.startswith(f"cache:  none, because {cache} {problem}")
    with pytest.raises(ConfigError, match=f"^config.{DIR}: {cache} {problem}"):
        compilation.enable_cache(str(cache))
    assert directory_of_jax() is None and not list(home.rglob("compiled-*"))


def test_a_directory_of_another_user_is_not_used(home, monkeypatch):
    for path in (home / ".cache" / "bert_jax", home / "named"):
        path.mkdir(parents=True, mode=0o755)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    line = compilation.enable_cache("auto")
    assert line.startswith("cache:  none, because") and "another user" in line
    with pytest.raises(ConfigError, match="_dir: .*/named belongs to another user; re"):
        compilation.enable_cache(str(home / "named"))
    assert directory_of_jax() is None


def test_auto_is_none_where_no_directory_can_be_made(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    for home in (str(tmp_path / "file"), "/proc/nope"):
        monkeypatch.setenv("XDG_CACHE_HOME", home)
        line = compilation.enable_cache("auto")
        assert line.startswith("cache:  none, because [Errno ") and home in line
    assert directory_of_jax() is None


def test_a_bucket_keeps_no_programs_that_compile_fast(bucket):
    before = jax.config.jax_persistent_cache_min_compile_time_secs
    assert before > 0
    line = compilation.enable_cache("gs://b/cache")
    assert line == "cache:  gs://b/cache" and directory_of_jax() == line[8:]
    assert jax.config.jax_persistent_cache_min_compile_time_secs == before


@pytest.mark.parametrize("name", ["/proc/nope", "/dev/null/a"])
def test_a_named_directory_that_is_not_writable_is_an_error(name):
    with pytest.raises(ConfigError, match=f"{DIR}: .* or '' to disable the cache"):
        compilation.enable_cache(name)
    assert directory_of_jax() is None


def test_a_named_directory_is_made_private(tmp_path):
    directory = tmp_path / "a" / "b"
    line = compilation.enable_cache(str(directory))
    assert line == f"cache:  {directory}" and mode(directory) == 0o700


@pytest.mark.slow
def test_a_second_run_compiles_nothing_and_has_the_same_bits(trained, tmp_path):
    """A program that a kill has truncated is compiled again."""
    directory, found = tmp_path / "cache", []
    short = {"model.num_hidden_layers": 1, "phases[0].num_steps": 10}
    changes = {"checkpoint.every_steps": 10, "compilation_cache_dir": directory}
    config = small_run(trained, **short, **changes)
    for name in ("first", "second"):
        stdout = run_well("bert_jax.train", *config, f"--workdir={tmp_path / name}")
        assert f"cache:  {directory}\n" in stdout
        found.append({path.name for path in directory.glob("*-cache")})
        (step,) = directory.glob("jit_train_step-*-cache")
        step.write_bytes(step.read_bytes()[:1000])
    assert len(found[0]) > 10 and found[0] == found[1]
    assert_same_bits(tmp_path / "first", tmp_path / "second", 10)
