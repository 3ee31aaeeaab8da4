"""Commands that commands print are complete: they run as printed."""

import ast
import csv
import os
import re
import shlex
import shutil
import sys

import pytest

from bert_jax import errors, inference
from bert_jax.config import from_config_dict
from bert_jax.data.corpus import build
from bert_jax.finetuning import config as tasks_config
from bert_jax.loading import model as model_lib
from bert_jax.loading import source as source_lib
from bert_jax.monitoring import terminal
from bert_jax.training import rollbacks
from tests import one_phase
from tests.commands import ENV, ROOT, capture, run_well, write_text
from tests.conftest import slow
from tests.finetuning import labelled, tuned
from tests.finetuning.test_config import config_dict

COMMAND = re.compile(r"python -m bert_jax\.\w+ (--|\{).*")
PLACEHOLDER = re.compile(r"=[A-Z]{2,}\b|=[NX]\b|/X\.py")


def printed_strings():
    """Returns the strings of the package with a command, without docstrings."""
    for path in sorted((ROOT / "bert_jax").rglob("*.py")):
        tree = ast.parse(path.read_text())
        documented = (ast.Module, ast.FunctionDef, ast.ClassDef)
        docstrings = {
            id(node.body[0].value)
            for node in ast.walk(tree)
            if isinstance(node, documented) and ast.get_docstring(node)
        }
        for node in ast.walk(tree):
            parts = node.values if isinstance(node, ast.JoinedStr) else [node]
            text = "".join(
                str(part.value) if isinstance(part, ast.Constant) else "{}"
                for part in parts
                if id(part) not in docstrings
            )
            if isinstance(node, ast.JoinedStr | ast.Constant) and COMMAND.search(text):
                yield f"{path.relative_to(ROOT)}: {COMMAND.search(text)[0]}"


def test_a_printed_command_has_no_placeholder():
    found = {text for text in printed_strings() if "=DIRECTORY" not in text}
    assert len(found) >= 6  # the card describes any DIRECTORY of a model
    assert not [text for text in found if PLACEHOLDER.search(text)]


def run_printed(text, cwd):
    """Runs the only command in a text, as a user would who copies it."""
    (command,) = re.findall(r"(?:echo .* \| )?python -m bert_jax\.[^\n]*", text)
    script = f"set -o pipefail; {command}"
    path = f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}"
    result = capture("bash", "-c", script, cwd=cwd, env=ENV | {"PATH": path})
    assert result.returncode == 0, command + result.stdout + result.stderr
    return result.stdout


@pytest.fixture
def home(trained, tmp_path):
    """A directory with a copy of a run and labelled texts; its name needs quoting."""
    home = tmp_path / "my {models}"
    shutil.copytree(trained / "run", home / "run")
    for name, num_rows in (("train.csv", 40), ("dev.csv", 20)):
        with (home / name).open("w") as file:
            words = [("the river", "calm"), ("the engine", "loud")] * num_rows
            csv.writer(file).writerows([("text", "label"), *words])
    return home


def commands_after_training(workdir):
    evaluated = [{"step": 20, "eval_masked_lm_loss": 4.5}]
    lines = terminal.summarize(workdir, 20, 1, evaluated, None, 1).splitlines()[-3:]
    return dict(zip(("evaluate", "export", "finetune"), lines, strict=True))


@pytest.mark.slow
def test_the_commands_that_train_and_finetune_print_last(home):
    """From pretraining to a prediction; the model has 32 positions."""
    commands = commands_after_training(str(home / "run"))
    assert '"masked_lm_loss"' in run_printed(commands["evaluate"], home)
    assert "Exported step 20" in run_printed(commands["export"], home)
    stdout = run_printed(commands["finetune"], home)
    assert "rows of at most 32 tokens" in stdout
    assert '"label"' in run_printed(stdout, home)


def test_a_run_given_to_predict_is_fine_tuned_by_the_command_in_the_error(home):
    with pytest.raises(errors.ConfigError) as error:
        tuned.read(home / "run")
    command = commands_after_training(str(home / "run"))["finetune"].strip()
    assert str(error.value).endswith(f"written by: {command}")


@pytest.mark.slow
def test_a_corrupt_checkpoint_is_replaced_by_the_command_in_the_error(home):
    (home / "run/checkpoints/20/meta/metadata").write_text("{")
    with pytest.raises(errors.ConfigError) as error:
        source_lib.open_workdir(home / "run")
    assert "Exported step 10" in run_printed(str(error.value), home)
    directory = re.findall(r"; use (.*), written by", str(error.value))[0]
    assert model_lib.read_encoder(directory).config.hidden_size == 32


@pytest.mark.slow
def test_the_rows_of_a_diverged_step_are_shown_by_the_command_in_the_error(home):
    reason = rollbacks.diagnose({"a": 1.0}, str(home / "run"), 7)
    assert "step 7 of 20" in run_printed(reason, home)


def test_a_large_corpus_is_prepared_by_the_command_in_the_error(tmp_path, monkeypatch):
    directory = tmp_path / "some text"
    directory.mkdir()
    write_text(directory / "a.txt")
    arguments = [
        f"--config={ROOT}/tests/one_phase.py",
        f"--config.data.sources=text:{directory}/*.txt",
        f"--config.data.corpus_dir={tmp_path / 'corpus'}",
        "--config.tokenizer.vocab_size=120",
    ]
    config = one_phase.get_config()
    config.data.sources = (f"text:{directory}/*.txt",)
    config.data.corpus_dir = str(tmp_path / "corpus")
    monkeypatch.setattr("sys.argv", ["train", *arguments])
    monkeypatch.setattr(build, "SMALL_BYTES", 0)
    with pytest.raises(errors.ConfigError) as error:
        build.find_corpus(from_config_dict(config))
    (command,) = re.findall(r"python -m (bert_jax\.[^\n]*)", str(error.value))
    run_well(*shlex.split(command))
    assert (tmp_path / "corpus" / "manifest.json").is_file()


@pytest.mark.parametrize(
    "kind", ["question_answering", *(slow(kind) for kind in labelled.FILES)]
)
def test_the_example_of_a_kind_is_an_input_of_its_model(kind, tmp_path):
    task = tasks_config.from_config_dict(config_dict(labelled.config_of(kind))).task
    tuned.write(tmp_path, kind)
    parts = tuple(task.form.example.split(" ||| "))
    options = {"max_query_length": 8} if kind == "question_answering" else {}
    model = inference.load_tuned(tmp_path, **options)
    (result,) = model.predict([parts])
    assert result
