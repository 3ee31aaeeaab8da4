"""Tests of estimates, against the measurements that they come from."""

import json
import re

import pytest

from bert_jax import config as config_lib
from bert_jax.configs import base, gpu, gpu_day, laptop
from bert_jax.distributed import chips
from bert_jax.plan import choices
from tests.commands import ROOT

DAY, BASE, SMALL, LAPTOP = (
    config_lib.from_config_dict(module.get_config())
    for module in (gpu_day, base, gpu, laptop)
)


RECIPES = ROOT / "docs/recipes.md"


def rows(name: str) -> list[dict]:
    path = ROOT / f"benchmarks/results/{name}.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines() if line]


def test_shares_of_the_peak_are_measured():
    found = {row["case"]: row["mfu"] for row in rows("gpu_h200") if "mfu" in row}
    packed = "{} 128x512 packed bfloat16"
    small = "12 layers of 512, 8,000 pieces, 1024x64 bfloat16, lines of 50 steps"
    assert choices.SHARE_OF_PEAK == {
        512: found[small],
        768: found[packed.format("base")],
        1024: found[packed.format("large")],
    }


def test_gains_are_those_of_the_measured_runs():
    *_, run = (row for row in rows("gpu_run") if row["benchmark"] == "pretraining")
    flops, gain = choices.GPU
    assert flops == pytest.approx(run["evaluations"][-1]["flops"], rel=1e-3)
    assert gain == pytest.approx(run["peer_value"] - run["value"], abs=0.01)
    row, *_ = re.findall(r"^\| `laptop.py` .*", RECIPES.read_text(), re.MULTILINE)
    assert f"{choices.LAPTOP[1]} below unigram entropy" in row
    assert choices.LAPTOP[0] == pytest.approx(
        sum(
            phase.num_steps
            * phase.global_batch_size
            * phase.sequence_length
            * choices.flops_per_token(LAPTOP, phase)
            for phase in LAPTOP.phases
        ),
        rel=1e-3,
    )


def test_the_loss_is_interpolated_and_a_range_beyond_the_measured_runs():
    (low, low_gain), (high, high_gain) = choices.LAPTOP, choices.GPU
    assert choices.gain(low) == pytest.approx((low_gain, low_gain))
    assert choices.gain(high) == pytest.approx((high_gain, high_gain))
    least, most = choices.gain(high**2 / low)
    assert most - high_gain == pytest.approx(high_gain - low_gain)
    assert least - high_gain == pytest.approx((high_gain - low_gain) / 2)
    assert choices.gain(low / 2) is None


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
    found = choices.tokens_per_second(config, config.phases[-1], kind)
    assert found == pytest.approx(tokens_per_second, rel=0.06)


def test_rows_that_fit_agree_with_compiled_programs():
    phase = DAY.phases[0]
    # preflight --topology=v5litepod-1 --nosearch, with 64 rows at a time: 10.43 GB
    state = choices.STATE_BYTES * choices.num_parameters(DAY)
    rows = 64 * choices.row_bytes(DAY, phase, "TPU v5 lite")
    assert state + rows == pytest.approx(10.43e9, rel=0.05)
    # 128 rows of 512 and 512 rows of 128 tokens were run on an H200.
    assert choices.rows_that_fit(DAY, phase, "NVIDIA H200") >= 128
    assert choices.rows_that_fit(BASE, BASE.phases[0], "NVIDIA H200") >= 512


def test_all_devices_have_estimates():
    for kind in chips.CHIPS:
        assert choices.tokens_per_second(DAY, DAY.phases[0], kind) > 1e4, kind
        assert choices.rows_that_fit(DAY, DAY.phases[0], kind) >= 8, kind
