"""Commands, flags, config keys and tests named in README.md and docs/ exist."""

import contextlib
import importlib.util
import io
import json
import os
import pathlib
import re
import runpy
import shlex
import shutil
import subprocess
import sys
from types import SimpleNamespace

import ml_collections
import pytest

from bert_jax import cli, overrides
from tests import corpora, fake_hub
from tests.commands import ENV, ROOT, capture
from tests.conftest import slow

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")]
TEXT = {path.name: path.read_text() for path in PAGES}


def commands() -> list[list[str]]:
    """Returns the words of every `python -m bert_jax.X` command."""
    found = []
    for text in TEXT.values():
        text = text.partition("<!-- begin: commands")[0]  # the rest is from --help
        text = text.replace("\\\n", " ")
        for command in re.findall(r"python -m (bert_jax\.[^`\n]+)", text):
            words = shlex.split(command.split(" | ")[0], comments=True)
            if any(word.startswith("-") for word in words):
                found.append(words)
    return found


def flags_of(module: str) -> set[str]:
    """Returns the names of the flags that a command defines."""
    path = ROOT / module.replace(".", "/")
    path = path / "__main__.py" if path.is_dir() else path.with_suffix(".py")
    text = path.read_text()
    if "define_flags(" in text:
        text += (ROOT / "bert_jax/inference/lines.py").read_text()
    defined = re.findall(r'\b(?:DEFINE_\w+|define_path)\(\s*"(\w+)"', text)
    return {"config", "help", *defined}


def has_key(config: ml_collections.ConfigDict, key: str) -> bool:
    return re.sub(r"\[\w+\]", "[0]", key) in overrides.values_of(config)


@pytest.mark.parametrize("words", commands(), ids=" ".join)
def test_flags_and_config_keys_of_a_command_exist(words):
    module, *arguments = words
    flags = flags_of(module)
    path = next((w.split("=")[1] for w in arguments if w.startswith("--config=")), "")
    for word in arguments:
        name = word.removeprefix("--").partition("=")[0]
        if not word.startswith("--"):
            continue
        if name.startswith("config."):
            path = path or "configs/base.py"
            assert has_key(cli._load(path), name.removeprefix("config.")), word
        else:
            assert name.removeprefix("no") in flags or name in flags, word
    if path and not path.endswith("X.py"):
        cli._load(path)


def test_config_keys_in_the_text_exist():
    configs = [
        cli._load(name)
        for name in (
            *("base", "finetune/glue:sst2", "finetune/squad2", "finetune/swag"),
            *("finetune/similarity", "finetune/conll"),
        )
    ]
    found = 0
    for page, text in TEXT.items():
        for key in re.findall(r"`(?:--)?config\.([\w.\[\]]+)", text):
            if key.endswith((".py", ".json", ".safetensors")) or key == "json":
                continue
            assert any(has_key(config, key) for config in configs), f"{page}: {key}"
            found += 1
    assert found > 80


def test_every_row_of_faithfulness_and_faults_names_tests_that_exist():
    text, _, _ = TEXT["faithfulness.md"].partition("## Migration")
    faults = (ROOT / "tests" / "faults" / "README.md").read_text()
    assert re.findall(r"^\| (\d+) \|", faults, re.M) == [str(i) for i in range(1, 26)]
    rows = re.findall(r"^\| (?!point|---|#)(.*) \|$", text + faults, re.M)
    assert len(rows) > 50
    for row in rows:
        names = re.findall(r"`(tests/\S+\.py)::(\w+)`", row)
        assert names, row
        for path, name in names:
            text = (ROOT / path).read_text()
            assert f"\ndef {name}(" in text and name.startswith("test_"), name


def test_readme_is_short():
    assert len(TEXT["README.md"].splitlines()) <= 110


def anchors(path: pathlib.Path) -> set[str]:
    """Returns the anchors that GitHub gives to the headings of a page."""
    text = re.sub(r"^```.*?^```", "", path.read_text(), flags=re.M | re.S)
    heads = re.findall(r"^#+ (.*)", text, re.M)
    return {re.sub(r"[^\w -]", "", head.lower()).replace(" ", "-") for head in heads}


def test_links_lead_to_files_and_headings_that_exist():
    paths = ("*.md", "docs/*.md", "launch/*.md", "tests/faults/*.md")
    num_anchors = 0
    for page in (page for path in paths for page in ROOT.glob(path)):
        links = re.findall(r"\]\(([^)#:]*)(?:#([^):]*))?\)", page.read_text())
        for link, anchor in links:
            target = page.parent / link if link else page
            assert target.exists(), f"{page}: {link}"
            assert not anchor or anchor in anchors(target), f"{page}: {link}#{anchor}"
            num_anchors += bool(anchor)
    assert num_anchors > 40


def test_the_readme_of_a_release_has_addresses(tmp_path):
    readme = tmp_path / "README.md"
    readme.write_text(TEXT["README.md"])
    release = (ROOT / ".github/workflows/release.yml").read_text()
    (command,) = re.findall(r"run: (sed -i .* README.md)", release)
    subprocess.run(command, shell=True, cwd=tmp_path, check=True)
    links = re.findall(r"\]\((.*?)\)", readme.read_text())
    assert len(links) > 20
    assert not [link for link in links if not link.startswith("https://")]


def test_tests_named_in_ci_exist():
    names = re.findall(r"\stests/\S+\.py", (ROOT / ".ci/run").read_text())
    assert names
    subprocess.run(["bash", "-c", f"ls {' '.join(names)}"], cwd=ROOT, check=True)


def test_pages_named_in_code_exist():
    """In errors, docstrings, comments and notebooks."""
    folders = ("bert_jax", "benchmarks", "docs", "launch", "notebooks", "tests")
    names = set()
    for path in (path for name in folders for path in (ROOT / name).rglob("*")):
        if path.suffix in (".py", ".ipynb", ".sh", ".yaml"):
            names |= {*re.findall(r"\b(?:docs|launch)/\w+\.md", path.read_text())}
    assert len(names) > 5
    assert not [name for name in names if not (ROOT / name).exists()]


@pytest.mark.parametrize("name", [*sorted(TEXT), slow("commands")])
def test_the_generated_parts_of_a_page_are_up_to_date(name):
    hook = SimpleNamespace(**runpy.run_path(str(ROOT / "docs/generate.py")))
    if name != "commands":  # whose text takes half a minute
        (old,) = re.findall(
            r"begin: commands -->\n\n(.*?)\n\n<!-- end", TEXT["reference.md"], re.S
        )
        hook.GENERATORS["commands"] = lambda: old
    page = "reference.md" if name == "commands" else name
    (path,) = (path for path in PAGES if path.name == page)
    for file, text in hook.generated([path]).items():
        assert file.read_text() == text, f"{file}: run python docs/generate.py"


def test_the_pages_of_results_have_every_case():
    text = "".join(TEXT[f"{name}.md"] for name in ("performance", "evidence"))
    for path in (ROOT / "benchmarks/results").glob("*.jsonl"):
        for line in path.read_text().splitlines():
            row = json.loads(line)
            case = row.get("case", row.get("topology")).replace("|", "&#124;")
            is_drawn = f"<!-- begin: {row.get('benchmark')}s {path.stem} -->" in text
            assert f"| {case} |" in text or is_drawn


def test_a_benchmark_that_is_no_longer_there_is_named_with_a_commit():
    removed = 0
    for page, text in TEXT.items():
        for section in re.split(r"^## ", text, flags=re.M):
            for name in re.findall(r"benchmarks\.(\w+)", section):
                if not (ROOT / f"benchmarks/{name}.py").exists():
                    assert "at commit" in section.casefold(), f"{page}: {name}"
                    removed += 1
    assert removed > 5


def test_exit_codes_are_documented():
    from bert_jax import errors

    codes = {value for name, value in vars(errors).items() if name.startswith("EXIT_")}
    rows = re.findall(r"^\| ([\d, ]+) \|", TEXT["reliability.md"], re.M)
    listed = {int(code) for row in rows for code in row.split(",")}
    assert codes <= listed


def test_the_example_of_a_dataset_prints_the_output_shown(tmp_path, monkeypatch):
    """With another corpus; the sizes of batches are those of the example."""
    text = TEXT["your_own_corpus.md"].partition("## Batches as a `tf.data.Dataset`")[2]
    code, output = re.findall(r"```\w+\n(.*?)```", text, re.S)
    small, config = corpora.make_config(tmp_path), cli._load("configs/tiny.py")
    corpora.write(small, corpora.make_documents(200))
    for name in ("sources", "corpus_dir", "num_shards", "num_streams"):
        config.data[name] = getattr(small.data, name)
    config.data.validation_fraction = small.data.validation_fraction
    config.tokenizer.vocab_file = small.tokenizer.vocab_file
    config.tokenizer.vocab_size = small.tokenizer.vocab_size
    monkeypatch.setattr("bert_jax.configs.tiny.get_config", lambda: config)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(code, {})
    assert printed.getvalue() == output


@pytest.mark.slow
def test_the_page_on_exports_can_be_followed_from_top_to_bottom(trained, tmp_path):
    """Its commands run in order in one directory, with a Hub on this machine."""
    shutil.copytree(trained / "run", tmp_path / "runs/tiny")
    blocks = re.findall(r"```(bash|python)\n(.*?)```", TEXT["export.md"], re.S)
    assert len(blocks) == 5
    for language, code in blocks:
        if language == "python" and not importlib.util.find_spec("transformers"):
            continue
        program = ["bash", "-ec"] if language == "bash" else [sys.executable, "-c"]
        with fake_hub.Hub() as hub:
            path = f"{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}"
            environment = ENV | {"PATH": path} | hub.environment(tmp_path / "home")
            code = code.replace("USER/NAME", "user/tiny")
            result = capture(*program, code, cwd=tmp_path, env=environment)
            assert result.returncode == 0, code + result.stdout + result.stderr
            if "upload" in code or "push" in code:
                files = hub.repositories["models/user/tiny"].files("main")
                assert files and "model.safetensors" in files
