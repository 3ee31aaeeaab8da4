"""Tests of bert_jax.inspect_batch as a person calls it."""

import re

import pytest

from tests.commands import run, run_well, small_run, write_text


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    directory = tmp_path_factory.mktemp("inspected")
    write_text(directory / "documents.txt")
    return directory


def test_shows_a_step_as_text_and_as_a_page(directory):
    """Also prepares the corpus, as `train` does."""
    html = directory / "step.html"
    arguments = [*small_run(directory), "--step=7", "--rows=2", f"--html={html}"]
    stdout = run_well("bert_jax.inspect_batch", *arguments)
    assert "step 7 of 60, phases[0]: 16 rows of 32 tokens" in stdout
    assert re.findall(r"^row (\d+) of 16", stdout, re.MULTILINE) == ["1", "2"]
    assert stdout.count("    A tokens ") == 2 and "[MASK]<=" in stdout
    assert "\x1b" not in stdout  # colours are for terminals
    assert stdout.rstrip().endswith(f"page: {html}")
    page = html.read_text()
    assert page.count("class='row'") == 2 and "Step 7" in page
    again = run_well("bert_jax.inspect_batch", *arguments)
    rows = re.compile(r"^step 7 .*", re.MULTILINE | re.DOTALL)
    assert rows.search(again)[0] == rows.search(stdout)[0]


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--step=61"], "--step=61 is not a step of the run; give one of 1 to 60"),
        (["--rows=0"], "--rows"),
        (["--html=tests"], "--html=tests is a directory; give a file"),
        (["--html=no/such/x.html"], "--html=no/such/x.html is in a directory that"),
    ],
)
def test_mistakes_are_one_line(directory, arguments, message):
    result = run("bert_jax.inspect_batch", *small_run(directory), *arguments)
    assert result.returncode == 2
    (line,) = result.stderr.splitlines()
    assert line.startswith("error: ") and message in line
