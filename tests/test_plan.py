"""Tests of `python -m bert_jax.plan`, with the examples of docs/plan.md.

Estimates are compared with the measurements that they come from.
"""

import importlib
import json
import re
import shlex
from pathlib import Path

import hypothesis
import numpy as np
import pytest
import safetensors.numpy
from absl import flags
from hypothesis import strategies as st
from ml_collections import ConfigDict, config_flags

from bert_jax import config as config_lib
from bert_jax import plan as plan_lib
from bert_jax.configs import babylm, base, base_modern, gpu, gpu_day, laptop
from bert_jax.data.tokenizers.base import SPECIAL_TOKENS
from bert_jax.distributed import chips
from bert_jax.errors import ConfigError
from bert_jax.plan import Plan, parse_bytes
from bert_jax.preflight import check
from tests.commands import ROOT, capture, run, run_well
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
continued = importlib.import_module("bert_jax.configs.continue")  # a keyword
DAY, SMALL, LAPTOP = (
    config_lib.from_config_dict(module.get_config())
    for module in (gpu_day, gpu, laptop)
)
MB, GB = 1e6, 1e9
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
    printed = capture("bash", "-c", script, check=True).stdout
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
    size = parse_bytes(given["text_bytes"])
    tokens = size / float(given.get("bytes_per_token", 4.7))
    Plan(
        config, size, tokens, float(given["hours"]), *chips.count(given["device"])
    ).choose()
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
    rows = re.findall(r"^\| (\S+) \| ([\d,]+) \| ([\d.]+) \|$", PAGE, re.M)
    assert len(rows) == 10
    for device, rate, hours in rows:
        kind, number = chips.count(device)
        found = plan_lib.tokens_per_second(DAY, DAY.phases[0], kind) * number
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
        ((*GIVEN, "--device=3*a100"), "must be a multiple of mesh.data * mesh.fsdp"),
    ],
)
def test_a_mistake_is_one_line(arguments, message):
    result = run("bert_jax.plan", *arguments)
    assert result.returncode == 2 and result.stdout == ""
    assert message in result.stderr and result.stderr.count("\n") == 1


@pytest.mark.parametrize("size", ["2 apples", "2"])
def test_an_invalid_size_of_the_text_is_an_error(size):
    with pytest.raises(ConfigError, match=f"--text_bytes={size} is not a size of at"):
        parse_bytes(size)


# ------------------------------------------------------------------------------ choices


def planned(module, text_bytes, hours, device, **changes):
    """Returns the plan's rows by name, and its validated config."""
    config = module.get_config()
    for key, value in changes.items():
        config[key] = value
    plan = Plan(config, text_bytes, text_bytes / 4.7, hours, *chips.count(device))
    rows = {name: f"{value}: {reason}" for name, value, reason in plan.choose()}
    return rows, config_lib.from_config_dict(plan.config)


@pytest.mark.parametrize(
    ("text_bytes", "hours", "device", "sizes", "vocab_size", "dropout"),
    [
        (12 * MB, 24, "a100", (4, 256), 4_000, 0.1),
        (48 * MB, 24, "a100", (12, 512), 8_000, 0.1),
        (500 * MB, 24, "h100", (12, 768), 16_000, 0.1),
        (2 * GB, 150, "a100", (12, 768), 30_522, 0.1),
        (20 * GB, 24, "4090", (12, 768), 30_522, 0.0),  # not even one epoch
        (20 * GB, 0.1, "a100", (4, 256), 30_522, 0.0),
    ],
)
def test_vocabulary_model_and_dropout(
    text_bytes, hours, device, sizes, vocab_size, dropout
):
    _, config = planned(gpu_day, text_bytes, hours, device)
    model = config.model
    assert (model.num_hidden_layers, model.hidden_size) == sizes
    assert model.num_attention_heads * 64 == model.intermediate_size // 4 == sizes[1]
    assert config.tokenizer.vocab_size == vocab_size
    assert model.hidden_dropout_prob == model.attention_probs_dropout_prob == dropout


def test_more_hours_than_the_text_is_good_for_are_not_used():
    rows, config = planned(gpu_day, 2 * GB, 1_000, "a100")
    (phase,) = config.phases
    epochs = phase.num_steps * phase.global_batch_size * 512 / (2 * GB / 4.7)
    assert epochs == pytest.approx(40, rel=0.01) and rows["epochs"].startswith("~40,")
    assert "the text is the limit" in rows["hours"]
    rows, config = planned(gpu_day, 2 * GB, 10, "a100")
    assert config.phases == (phase,)  # a maximum: the clock ends the run
    assert config.budget_hours == 10 and rows["hours"].startswith("~10 of 10:")
    assert "~34,800, warmup 2,090" in rows["steps"] and config.eval.every_steps == 1_740


def test_phases_keep_their_shares_and_the_last_one_is_ended_by_the_clock():
    _, config = planned(base, 2 * GB, 2, "h100")
    first, last = config.phases
    _, all_of_it = planned(base, 2 * GB, 1_000, "h100")
    assert all_of_it.phases[0].num_steps == 9 * all_of_it.phases[1].num_steps
    assert first.num_steps < all_of_it.phases[0].num_steps
    assert last.num_steps == all_of_it.phases[1].num_steps
    assert config.optimizer.schedule == "wsd" and config.optimizer.decay_steps == 0


def test_options_that_need_the_last_step_are_left_out():
    rows, _ = planned(babylm, 1 * MB, 1, "h100")
    assert "without average_steps, final_masked_lm_prob, keep_steps" in rows["steps"]


def test_the_batch_is_split_to_fit():
    parts = {}
    for device in ("l4", "a100", "h100", "v5e-8"):
        _, config = planned(gpu_day, 20 * GB, 200, device)
        assert config.phases[0].global_batch_size == 256
        parts[device] = config.accumulation_steps
    assert parts == {"l4": 8, "a100": 4, "h100": 1, "v5e-8": 1}


def test_a_published_model_keeps_its_sizes_vocabulary_and_rate():
    rows, config = planned(continued, 100 * MB, 24, "4090", init_from="bert")
    given = config_lib.from_config_dict(continued.get_config())
    assert config.model == given.model and config.tokenizer == given.tokenizer
    assert config.optimizer.learning_rate == given.optimizer.learning_rate
    assert rows["start"].startswith("bert: ") and rows["epochs"].startswith("~10,")
    assert rows["held-out loss"].startswith("not known")


@hypothesis.given(
    st.sampled_from((base, base_modern, gpu_day, babylm)),
    st.floats(1e5, 1e13),
    st.floats(0.01, 1e4),
    st.sampled_from((*chips.GPUS, "8*h100", "v3-8", "v4-8", "v5e-256", "2*tpu7x-16")),
)
def test_every_plan_is_a_valid_config(module, text_bytes, hours, device):
    """It runs on the devices, or an error says that the batch is too small for them."""
    _, config = planned(module, text_bytes, hours, device)
    _, num_devices = chips.count(device)
    if all(phase.global_batch_size % num_devices == 0 for phase in config.phases):
        check.check_devices(config, num_devices, num_slices=1)
    else:
        with pytest.raises(ConfigError, match="=128 must be .*= 256; try 256"):
            check.check_devices(config, num_devices, num_slices=1)


# ---------------------------------------------------------------------------- estimates


def measured(name: str) -> list[dict]:
    path = ROOT / f"benchmarks/results/{name}.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines() if line]


def test_shares_of_the_peak_are_measured():
    shares = {row["case"]: row["mfu"] for row in measured("gpu_h200") if "mfu" in row}
    packed = "{} 128x512 packed bfloat16"
    small = "12 layers of 512, 8,000 pieces, 1024x64 bfloat16, lines of 50 steps"
    assert plan_lib.SHARE_OF_PEAK == {
        512: shares[small],
        768: shares[packed.format("base")],
        1024: shares[packed.format("large")],
    }


def test_gains_are_those_of_the_measured_runs():
    (low, low_gain), (high, high_gain) = plan_lib.LAPTOP, plan_lib.GPU
    *_, run = (row for row in measured("gpu_run") if row["benchmark"] == "pretraining")
    assert high == pytest.approx(run["evaluations"][-1]["flops"], rel=1e-3)
    assert high_gain == pytest.approx(run["peer_value"] - run["value"], abs=0.01)
    recipes = (ROOT / "docs/recipes.md").read_text()
    row, *_ = re.findall(r"^\| `laptop.py` .*", recipes, re.MULTILINE)
    assert f"{low_gain} below unigram entropy" in row
    assert low == pytest.approx(
        sum(
            phase.num_steps
            * phase.global_batch_size
            * phase.sequence_length
            * plan_lib.flops_per_token(LAPTOP, phase)
            for phase in LAPTOP.phases
        ),
        rel=1e-3,
    )
    assert plan_lib.most_gain(low) == pytest.approx(low_gain)
    assert plan_lib.most_gain(high) == pytest.approx(high_gain)


@pytest.mark.parametrize(
    ("config", "kind", "tokens_per_second"),
    [
        # 2,983 pairs/s in rows of two, and the steps' share of the time of a run.
        (DAY, "NVIDIA H200", 2983 / 2 * 512 * 0.92),
        (DAY, "NVIDIA H100", 2983 / 2 * 512 * 0.92 * 3.35 / 4.8),  # bandwidth
        (DAY, "NVIDIA A100", 2983 / 2 * 512 * 0.92 * 312 / 989 * 0.6),  # no kernels
        (DAY, "TPU v5 lite", 2983 / 2 * 512 * 0.92 * 0.819 / 4.8),
        (SMALL, "NVIDIA H200", 4519 * 1024 * 64 / 214),  # the whole run
    ],
)
def test_rates_are_scaled_from_those_of_an_h200(config, kind, tokens_per_second):
    estimate = plan_lib.tokens_per_second(config, config.phases[-1], kind)
    assert estimate == pytest.approx(tokens_per_second, rel=0.06)


def test_rows_that_fit_agree_with_compiled_programs():
    phase = DAY.phases[0]
    # preflight --topology=v5litepod-1 --nosearch, with 64 rows at a time: 10.43 GB
    state = plan_lib.STATE_BYTES * plan_lib.num_parameters(DAY)
    row_bytes = (10.43e9 - state) / 64
    rows = (15.75 * 2**30 - state) / row_bytes
    fitting = plan_lib.rows_that_fit(DAY, phase, "TPU v5 lite")
    assert fitting == pytest.approx(rows, rel=0.05)
    # 128 rows of 512 tokens were run on an H200.
    assert plan_lib.rows_that_fit(DAY, phase, "NVIDIA H200") >= 128


def test_all_devices_have_estimates():
    for kind in chips.CHIPS:
        assert plan_lib.tokens_per_second(DAY, DAY.phases[0], kind) > 1e4, kind
        assert plan_lib.rows_that_fit(DAY, DAY.phases[0], kind) >= 8, kind
