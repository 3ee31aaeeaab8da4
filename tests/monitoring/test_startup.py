"""What a start took is told once, part by part."""

import re
import subprocess
import sys

import jax
import jax.numpy as jnp
import pytest

from bert_jax.errors import ConfigError
from bert_jax.monitoring import goodput
from bert_jax.training import compilation
from tests.commands import run_well, small_run


def test_parts_are_told_in_order_and_once():
    said = []
    start = goodput.Startup()
    start.mark("corpus")
    start.mark("data")
    start.finish("first step", jnp.ones(3), said.append)
    start.mark("later")
    start.finish("later", jnp.ones(3), said.append)
    (words,) = said
    names = re.findall(r"([a-z ]+) \d+\.\d s", words.removeprefix("start:  "))
    assert [x.strip() for x in names] == ["import", "corpus", "data", "first step"]


def test_it_counts_from_the_start_of_python_not_of_the_process():
    """Else what a shell did before it became Python would count."""
    code = (
        "import time; before = time.time(); time.sleep(0.5)\n"
        "from bert_jax.monitoring.goodput import Startup\n"
        "print(before, Startup().began, time.time())"
    )
    stdout = subprocess.run([sys.executable, "-c", code], capture_output=True).stdout
    before, began, after = map(float, stdout.split())
    assert before + 0.5 <= began < after


def test_nothing_is_kept_unless_asked_for():
    before = jax.config.jax_compilation_cache_dir
    compilation.keep_compiled("")
    assert jax.config.jax_compilation_cache_dir == before


@pytest.mark.parametrize("name", ["/proc/nope", "README.md"])
def test_a_cache_that_cannot_be_written_is_refused(name):
    before = jax.config.jax_compilation_cache_dir
    with pytest.raises(ConfigError, match=f"compilation_cache_dir='{name}': "):
        compilation.keep_compiled(name)
    assert jax.config.jax_compilation_cache_dir == before


@pytest.mark.slow
def test_compiled_programs_are_kept_and_found(trained, tmp_path):
    """A second run compiles no step of its own: the first one's is the only file.

    Smaller programs are left out: they are kept where they took a second, which
    a busy machine decides anew in each run.
    """
    changes = {"compilation_cache_dir": str(tmp_path / "cache")}
    steps = []
    for name in ("first", "second"):
        arguments = [*small_run(trained, **changes), f"--workdir={tmp_path / name}"]
        stdout = run_well("bert_jax.train", *arguments)
        assert re.search(r"start:  import .*, compile \d.*, first step \d", stdout)
        steps.append(sorted((tmp_path / "cache").glob("jit_train_step-*-cache")))
    assert len(steps[0]) == 1 and steps[0] == steps[1]
