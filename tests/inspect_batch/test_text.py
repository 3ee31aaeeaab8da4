"""The command `python -m bert_jax.inspect_batch` prints text and writes a page."""

import re

from tests.commands import run_well, small_run, write_text


def test_shows_a_step_as_text_and_as_a_page(tmp_path):
    """The command also prepares the corpus, as `train` does."""
    write_text(tmp_path / "documents.txt")
    html = tmp_path / "step.html"
    arguments = [*small_run(tmp_path), "--step=7", "--rows=2", f"--html={html}"]
    stdout = run_well("bert_jax.inspect_batch", *arguments)
    assert "step 7 of 60, phases[0]: 16 rows of 32 tokens" in stdout
    assert re.findall(r"^row (\d+) of 16", stdout, re.MULTILINE) == ["1", "2"]
    assert stdout.count("    A tokens ") == 2 and "[MASK]<=" in stdout
    assert "\x1b" not in stdout  # colours are for terminals
    assert stdout.rstrip().endswith(f"page: {html}")
    page = html.read_text()
    assert "step 7 of 60" in page and len(re.findall(r"\brow \d of 16", page)) == 2
