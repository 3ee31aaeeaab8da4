"""Tests of `python -m bert_jax.plan`, with the examples of docs/plan.md."""

import importlib
import json
import re
import shlex
import subprocess
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
from absl import flags
from ml_collections import ConfigDict, config_flags

from bert_jax import config as config_lib
from bert_jax.configs import gpu_day
from bert_jax.data.tokenizers.wordpiece import SPECIAL_TOKENS
from bert_jax.distributed import chips
from bert_jax.plan import choices
from bert_jax.plan.choices import Plan
from tests.commands import ROOT, run, run_well
from tests.conftest import slow
from tests.models import change_json

PAGE = (ROOT / "docs/plan.md").read_text()
# Each command, and its output or the end of it, which is in the next block.
EXAMPLES = re.findall(
    r"```bash\n(python -m bert_jax\.plan .*?)```\n.*?```(?:bash|text)\n(.*?)```",
    PAGE,
    re.S,
)
PYTHON = 'python() { printf "%s\\n" "$2" "${@:3}" ""; }\n'  # prints its arguments
GIVEN = ("--config=gpu_day", "--text_bytes=2GB", "--hours=150", "--device=a100")


def write_model(directory: Path, num_tokens: int) -> None:
    """Writes the files of BERT-base that are read for a plan, with one tensor."""
    directory.mkdir(parents=True)
    tokens = (*SPECIAL_TOKENS, *(f"w{i}" for i in range(num_tokens - 5)))
    (directory / "vocab.txt").write_text("\n".join(tokens))
    config = {"model_type": "bert", "vocab_size": num_tokens}
    (directory / "config.json").write_text(json.dumps(config))
    safetensors.numpy.save_file({"x": np.zeros(1)}, directory / "model.safetensors")


def commands(stdout: str) -> dict[str, list[str]]:
    """Returns the arguments that bash gives to each module in the output of a plan."""
    script = PYTHON + stdout[stdout.index("plan=(") :]
    printed = subprocess.run(
        ["bash", "-c", script], capture_output=True, text=True, check=True
    ).stdout
    lines = [part.split("\n") for part in printed.strip("\n").split("\n\n")]
    return {module: arguments for module, *arguments in lines}


def read_config(arguments: list[str]) -> ConfigDict:
    """Returns the config that a command reads from its arguments."""
    name, *overrides = [x for x in arguments if x.startswith("--config")]
    (name,) = re.findall(r"--config=(?:configs/)?(\w+)", name)
    config = importlib.import_module(f"bert_jax.configs.{name}").get_config()
    values = flags.FlagValues()
    config_flags.DEFINE_config_dict(
        "config", config, flag_values=values, sys_argv=["", *overrides]
    )
    values(["", *overrides])
    return config


@pytest.mark.parametrize(
    ("command", "output"),
    [EXAMPLES[0], *(slow(*example) for example in EXAMPLES[1:])],
    ids=lambda x: x.partition("device=")[2][:8],
)
def test_an_example_prints_the_output_of_the_page(command, output):
    """The commands in the output read the config of the plan, which is valid."""
    write_model(Path("models/bert"), 30522)
    write_model(Path("models/chinese"), 21128)
    _, _, module, *arguments = shlex.split(command.replace("\\\n", " "))
    stdout = run_well(module, *arguments)
    assert stdout.endswith(output)
    found = commands(stdout)
    *config_flags, workdir = found["bert_jax.train"]
    assert config_flags == found["bert_jax.prepare"]
    assert ["--workdir=runs/plan"] == [workdir] == found["bert_jax.evaluate"]
    config = read_config(arguments)
    if "chinese" in command:
        config.tokenizer.vocab_size = 21128
    given = dict(x.removeprefix("--").split("=", 1) for x in arguments)
    size = (
        float(given["text_bytes"][:-2]) * {"M": 1e6, "G": 1e9}[given["text_bytes"][-2]]
    )
    tokens = size / float(given.get("bytes_per_token", 4.7))
    found = chips.count(given["device"])
    Plan(config, size, tokens, float(given["hours"]), *found).choose()
    if "corpora" not in command:
        config.data.corpus_dir = "corpora/plan"
    printed = read_config(config_flags)
    printed.tokenizer.vocab_size = config.tokenizer.vocab_size
    assert printed.to_json() == config.to_json()
    config_lib.from_config_dict(printed)


def test_the_plan_of_a_continued_run_is_for_the_sizes_of_its_model(tmp_path):
    write_model(tmp_path / "bert", 3000)
    change_json(tmp_path / "bert", "config.json", num_hidden_layers=3)
    (tmp_path / "own.py").write_text(
        "import importlib\n"
        "def get_config():\n"
        "  config = importlib.import_module('bert_jax.configs.continue').get_config()\n"
        "  with config.ignore_type():\n"
        "    config.model.hidden_dropout_prob = 0\n"
        "  return config\n"
    )
    arguments = ["--config=own.py", "--text_bytes=10MB", "--hours=1", "--device=l4"]
    given = ["-config.mesh.data", "-1", "-config.init_from", "bert"]
    stdout = run_well("bert_jax.plan", *arguments, *given)
    assert re.search("vocabulary +3,000 pieces +that of config.init_from", stdout)
    assert "3 layers of 768, 25 M " in stdout
    found = commands(stdout)["bert_jax.prepare"]
    assert {"--config.init_from=bert", "--config.mesh.data=-1"} <= {*found}
    assert "model" not in " ".join(found)


def test_all_examples_of_the_page_are_found():
    assert len(EXAMPLES) == PAGE.count("python -m bert_jax.plan ") == 5


def test_the_rates_of_the_page_are_the_estimates():
    config = config_lib.from_config_dict(gpu_day.get_config())
    rows = re.findall(r"^\| (\S+) \| ([\d,]+) \| ([\d.]+) \|$", PAGE, re.M)
    assert len(rows) == 10
    for device, rate, hours in rows:
        kind, number = chips.count(device)
        found = choices.tokens_per_second(config, config.phases[0], kind) * number
        assert f"{found:,.0f}" == rate
        assert f"{1e10 / found / 3600:.1f}" == hours


def test_keys_given_on_the_command_line_are_in_the_commands_once():
    stdout = run_well(
        "bert_jax.plan",
        *("--config=gpu_day", "--config.data.corpus_dir=corpora/b"),
        *("--config.optimizer.beta2=0.95", "--config.budget_hours=1"),
        *("--text_bytes=100MB", "--hours=3", "--device=8*h100"),
    )
    assert "8 x NVIDIA H100" in stdout
    found = commands(stdout)
    assert set(found) == {"bert_jax.prepare", "bert_jax.train", "bert_jax.evaluate"}
    arguments = found["bert_jax.prepare"]
    for flag in ("data.corpus_dir=corpora/b", "optimizer.beta2=0.95"):
        assert f"--config.{flag}" in arguments
    assert [x for x in arguments if "budget" in x] == ["--config.budget_hours=3.0"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (GIVEN[:1], "--text_bytes is missing"),
        ((*GIVEN, "--device=t4"), "--device=t4 is not known; use one of a100, h100,"),
        ((*GIVEN, "--text_bytes=2 apples"), "--text_bytes=2 apples is not a size;"),
        slow((*GIVEN, "--text_bytes=0MB"), "--text_bytes=0MB is not a size"),
        ((*GIVEN, "--device=3*a100"), "must be a multiple of mesh.data * mesh.fsdp"),
    ],
)
def test_a_mistake_is_one_line(arguments, message):
    result = run("bert_jax.plan", *arguments)
    assert result.returncode == 2 and result.stdout == ""
    assert message in result.stderr and result.stderr.count("\n") == 1
