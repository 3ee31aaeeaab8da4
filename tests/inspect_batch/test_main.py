"""The command `python -m bert_jax.inspect_batch` prints text and writes a page."""

import re

import pytest

from tests.commands import error_of, run_well, small_run


def test_shows_a_step_as_text_and_as_a_page(text):
    """The command also prepares the corpus, as `train` does."""
    html = text / "step.html"
    arguments = [*small_run(text), "--step=7", "--rows=2", f"--html={html}"]
    stdout = run_well("bert_jax.inspect_batch", *arguments)
    assert "step 7 of 60, phases[0]: 16 rows of 32 tokens" in stdout
    assert re.findall(r"^row (\d+) of 16", stdout, re.MULTILINE) == ["1", "2"]
    assert stdout.count("    A tokens ") == 2 and "[MASK]<=" in stdout
    assert stdout.rstrip().endswith(f"page: {html}")
    page = html.read_text()
    assert page.count("class='row'") == 2 and "Step 7" in page


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("--step=61", "--step=61 is not a step of the run; give a step from 1 to 60"),
        ("--workdir=run", "--workdir and --config are mutually exclusive; give one"),
    ],
)
def test_an_argument_that_is_wrong_is_a_one_line_error(text, argument, message):
    error = error_of("bert_jax.inspect_batch", *small_run(text), argument)
    assert error == f"error: {message}\n"
