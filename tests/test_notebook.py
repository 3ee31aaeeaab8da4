"""The notebook runs from top to bottom, and its outputs are those of one run."""

import json

import pytest

from tests.commands import ENV, ROOT

NOTEBOOK = ROOT / "notebooks" / "finetune.ipynb"


@pytest.mark.slow
def test_it_runs_with_few_steps(tmp_path, monkeypatch):
    import nbclient
    import nbformat

    for name, value in ENV.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("NOTEBOOK_STEPS", "16")
    monkeypatch.setenv("NOTEBOOK_OUTPUT", str(tmp_path))
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbclient.NotebookClient(
        notebook, timeout=900, resources={"metadata": {"path": str(tmp_path)}}
    ).execute()
    text = ""
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            # A command that fails does not end a notebook.
            text += output.get("text", "")
            assert output.output_type != "error", output
    assert "Traceback" not in text and "error:" not in text, text
    assert text.count("Best by accuracy") == 3
    assert "Trained to step 16" in text and "int8 weights: " in text
    for name in ("tuned", "from_scratch", "student"):
        assert (tmp_path / name / "model" / "model.safetensors").is_file()


def test_its_cells_were_run_in_order():
    cells = json.loads(NOTEBOOK.read_text())["cells"]
    counts = [x["execution_count"] for x in cells if x["cell_type"] == "code"]
    assert counts == list(range(1, len(counts) + 1))


def test_it_links_to_colab_and_has_no_local_paths():
    text = NOTEBOOK.read_text()
    assert "colab-badge.svg" in text and "/notebooks/finetune.ipynb" in text
    for path in ("/tmp", "/root", "/home", str(ROOT)):
        assert f"{path}/" not in text
