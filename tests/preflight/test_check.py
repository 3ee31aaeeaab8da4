"""The report as text and JSON, and its numbers against arithmetic."""

import json
import signal
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from bert_jax.distributed import chips
from bert_jax.monitoring.throughput import step_flops
from bert_jax.preflight import __main__ as report_lib
from bert_jax.preflight import check
from bert_jax.preflight.check import Trial
from bert_jax.preflight.hlo import CompiledProgram
from bert_jax.training import compilation
from tests.commands import ONE_PHASE, run, run_well, start
from tests.conftest import make_config, slow, use_mesh

TINY = [
    ONE_PHASE,
    "--config.model.num_hidden_layers=1",
    "--config.data.corpus_dir=nowhere",
]


@pytest.mark.libtpu
def test_json_report_of_a_slice_without_a_tpu():
    result = run(
        "bert_jax.preflight",
        *TINY,
        "--topology=v5e:2x2",
        "--json",
        "--nosearch",
        "--price_per_chip_hour=2",
        "--config.optimizer.average_steps=1",
    )
    assert result.returncode == 0, result.stderr
    assert "preflight: compiling phase 1 of 1: 32 x 64 tokens" in result.stderr
    report = json.loads(result.stdout)
    assert report["fits"] is True
    assert (report["devices"], report["chips"]) == (4, 4)
    assert report["compute_dtype"] == "bfloat16"  # that of the slice, not of this CPU
    assert report["mesh"] == {"data": 4, "fsdp": 1, "tensor": 1}
    assert any("no corpus in nowhere" in line for line in report["checks"])
    (phase,) = report["phases"]
    compiled, estimated = phase["compiled"], phase["estimated"]
    arguments = compiled["arguments"]
    # The mean counts as a parameter. Two moments, and two scalar counters.
    moments = arguments["optimizer_moments"] - arguments["parameters"]
    assert 0 <= moments <= 16
    assert arguments["batch"] == 8 * 4 * (4 * 64 + 3 * 13 + 3 * 1)
    assert compiled["memory"]["arguments"] >= sum(arguments.values())
    assert compiled["memory"]["aliased"] > 2 * arguments["parameters"]
    memory = compiled["memory"]
    assert memory["total"] == (
        memory["arguments"]
        + memory["temporaries"]
        + (memory["outputs"] - memory["aliased"])  # metrics and padding
        + memory["code"]
    )
    assert 0 < memory["outputs"] - memory["aliased"] < 2**16
    assert {each["kind"] for each in compiled["collectives"]} == {"all-reduce"}
    step = sum(estimated["seconds"].values())
    assert estimated["step_seconds"] == pytest.approx(step)
    assert report["hours"] == pytest.approx(2000 * step / 3600)
    assert report["cost"] == pytest.approx(report["hours"] * 4 * 2)
    rate = 32 / step
    assert estimated["sequences_per_second"] == pytest.approx(rate)
    flops = phase["model_flops"] / 32
    assert estimated["mfu"] == pytest.approx(rate * flops / (4 * 197e12))


@pytest.mark.slow
def test_local_reports_memory_flops_and_collectives_but_no_cycles():
    stdout = run_well("bert_jax.preflight", *TINY, "--topology=local", devices=8)
    assert "8 x cpu" in stdout and "float32" in stdout
    assert "UNKNOWN whether it fits" in stdout
    assert "only the TPU's compiler estimates cycles" in stdout
    assert "all-reduce" in stdout and "model FLOPs" in stdout
    assert "hours" not in stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], ["--topology is missing", "v5e:16x16", "local"]),
        (
            ["--topology=local", "--devices=2"],
            ["--devices and --topology are mutually exclusive"],
        ),
        slow(
            ["--json", "--devices=2"],
            ["--devices and --json are mutually exclusive"],
        ),
        slow(
            ["--price_per_chip_hour=1", "--devices=2"],
            ["--devices and --price_per_chip_hour are mutually exclusive"],
        ),
        slow(
            ["--topology=local", "--slices=2"],
            ["--slices needs --devices", "2*v5e:16x16"],
        ),
    ],
)
def test_errors_are_one_line_with_exit_code_2(arguments, words):
    result = run("bert_jax.preflight", *TINY, *arguments, devices=2)
    assert result.returncode == 2 and not result.stdout
    (line,) = [x for x in result.stderr.splitlines() if x.startswith("error: ")]
    assert all(word in line for word in words)


def test_devices_flag_compiles_nothing():
    result = run("bert_jax.preflight", *TINY, "--devices=16")
    assert result.returncode == 0 and not result.stderr
    assert result.stdout == (
        "the config fits 16 device(s), mesh data 16 x fsdp 1 x tensor 1;"
        " phase 1: 32 sequences, 2 per device and microbatch\n"
    )


@pytest.mark.slow
@pytest.mark.libtpu
def test_long_rows_with_remat_do_not_overflow_the_stack_of_the_compiler():
    """libtpu died with signal 11 when its threads had their default stack size.

    The phase is the second one of configs/base.py, with one layer.
    """
    model = {"hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072}
    model |= {"max_position_embeddings": 512, "num_hidden_layers": 1}
    model |= {f"{x}_dropout_prob": 0.1 for x in ("hidden", "attention_probs")}
    phase = {"sequence_length": 512, "max_predictions": 80, "global_batch_size": 64}
    changes = {f"model.{key}": value for key, value in model.items()}
    changes |= {f"phases[0].{key}": value for key, value in phase.items()}
    changes |= {"remat": "full", "tokenizer.vocab_size": 30522}
    flags = [f"--config.{key}={value}" for key, value in changes.items()]
    where = [*TINY, "--topology=v5e:2x2", "--nosearch"]
    assert "The run fits." in run_well("bert_jax.preflight", *where, *flags)


@pytest.fixture
def small_chip(monkeypatch):
    """Sets a small memory limit in the TPU's compiler; small programs compile fast."""
    limit_mib, compile_phase = 128, compilation.compile_phase

    def compile_for_less(*args):
        return compile_phase(*args, {"xla_tpu_max_hbm_size_mib": limit_mib})

    monkeypatch.setattr(compilation, "compile_phase", compile_for_less)
    monkeypatch.setattr(check.Phases, "hbm_bytes", limit_mib * 2**20)
    return limit_mib * 2**20


@pytest.mark.libtpu
@pytest.mark.slow
def test_the_parts_that_fit_are_reported_if_the_batch_does_not_fit(small_chip):
    sequences = 2**13
    config = make_config(
        model__num_hidden_layers=1,
        model__hidden_size=128,
        phase={"sequence_length": 32, "global_batch_size": 2**15},
    )
    report = check.preflight(config, "v5e:2x2", search=False)
    assert report["fits"] is False
    (phase,) = report["phases"]
    hbm = phase["compiled"]["hbm_bytes"]
    assert phase["compiled"]["needed_bytes"] > hbm == small_chip
    remedy = report["remedy"]
    assert remedy["flag"].startswith("--config.accumulation_steps=")
    parts = int(remedy["flag"].partition("=")[2])
    assert 1 < parts < 128 and sequences % parts == 0
    text = report_lib.table(report)
    assert "DOES NOT FIT" in text and remedy["flag"] in text


@pytest.mark.slow
def test_ctrl_c_stops_it_during_a_compilation():
    flags = ["--config=configs/large.py", "--topology=local", "--nosearch"]
    process = start("bert_jax.preflight", *flags)
    assert process.stderr is not None
    while "compiling phase" not in process.stderr.readline():
        assert process.poll() is None
    time.sleep(5)
    process.send_signal(signal.SIGINT)
    try:
        _, err = process.communicate(timeout=20)
    finally:
        process.kill()
    assert process.returncode == 130 and err.endswith("stopped\n")


V5E = chips.CHIPS["TPU v5 lite"]


class MadeUp(check.Phases):
    """Phases whose programs have a thousand cycles per layer, more with remat."""

    def compile_one(self, config, index):
        slope = {"none": 4, "matmuls": 2, "full": 1}[config.remat] * 2**20
        sequences = config.phases[0].global_batch_size // 8 // config.accumulation_steps
        needed = sequences * slope
        facts = {"arguments": {"parameters": 5}}
        if needed > self.hbm_bytes:
            return Trial(config, 0, sequences, facts | {"needed_bytes": needed})
        cycles = config.model.num_hidden_layers * 1000
        cycles = cycles * {"none": 10, "matmuls": 11, "full": 13}[config.remat] // 10
        line = (
            f'  %a = f32[8] copy(%b), backend_config={{"estimated_cycles":"{cycles}"}}'
        )
        program = "ENTRY %main (b: f32[8]) -> f32[8] {\n" + line + "\n}"
        facts |= {"memory": {"arguments": 5, "total": needed}}
        return Trial(config, 0, sequences, facts, CompiledProgram(program, 8))


def made_up(global_batch_size, **changes):
    config = make_config(
        model__num_hidden_layers=5,
        phase={"global_batch_size": global_batch_size},
        **changes,
    )
    mesh, threads = use_mesh(8, 1, 1), ThreadPoolExecutor(1)
    return MadeUp(config, mesh, V5E, None, threads)


def test_a_search_compiles_each_kind_of_remat():
    phases = made_up(64)
    (found,) = phases.remats(phases.compile(phases.config))
    assert {each["remat"]: each["total_bytes"] for each in found} == {
        "none": 32 * 2**20,
        "full": 8 * 2**20,
        "matmuls": 16 * 2**20,
    }
    cycles = {each["remat"]: each["estimated"]["cycles"]["copies"] for each in found}
    assert cycles == {"none": 5000, "full": 6500, "matmuls": 5500}
    assert found[0]["remat"] == "none" and found[0]["fits"]


@pytest.mark.parametrize(
    ("sequences", "steps", "parts"),
    # 15.75 GiB hold 4,032 sequences of 4 MiB.
    [
        (4800, 1, 2),
        (9600, 1, 3),
        (9600, 2, 3),
        (4 * 4099, 1, 4099),
        (2 * 4099, 4, 4099),
    ],
)
def test_accumulation_steps_divide_the_batch_until_it_fits(sequences, steps, parts):
    phases = made_up(8 * sequences, accumulation_steps=steps)
    (trial,) = phases.divided()
    assert trial.fits and trial.config.accumulation_steps == parts
    assert sequences % parts == 0
    (found,) = phases.remats([trial])
    assert [each["accumulation_steps"] for each in found] == [parts] * 3
    assert phases.estimate(trial)["cycles"]["copies"] == 5000


def test_there_is_no_remedy_if_not_even_one_sequence_fits(monkeypatch):
    monkeypatch.setattr(MadeUp, "hbm_bytes", 1)
    assert made_up(64).divided() == []


# ------------------------------------------------------------------- estimates

PROGRAM = """\
ENTRY %main (x: f32[1024]) -> f32[1024] {
  %a = f32[1024] fusion(%x), backend_config={"estimated_cycles":"3000000"}
  %b = f32[1024] copy(%a), backend_config={"estimated_cycles":"1500000"}
  %c = f32[1024] all-reduce(%b), replica_groups={{0,1,2,3}}
  %d = f32[1024] sort(%c)
}
"""


def phase_estimate(chip=V5E, num_devices=4, price=None, text=PROGRAM):
    trial = Trial(make_config(), 0, 2, {}, CompiledProgram(text, num_devices))
    return check.Phases(trial.config, None, chip, price, None).estimate(trial)


def test_seconds_are_cycles_at_the_clock_and_bytes_at_the_rates():
    found = phase_estimate()
    assert found is not None
    assert found["cycles"]["elementwise"] == 3_000_000
    seconds = found["seconds"]
    assert seconds["copies"] == pytest.approx(1.5e6 / V5E.clock_hz)
    # An all-reduce sends 3/4 of its 4 kB twice, at half of the links' rate.
    sent = 2 * 0.75 * 4096 / (V5E.ici_bytes_per_s / 2)
    assert seconds["collectives"] == pytest.approx(sent)
    assert found["operations_without_estimate"] == 1
    written = 4096 / V5E.hbm_bytes_per_s
    assert seconds["elementwise"] == pytest.approx(3e6 / V5E.clock_hz + written)
    assert found["step_seconds"] == pytest.approx(sum(seconds.values()))


def test_a_pallas_kernel_takes_the_time_of_its_flops():
    kernel = """\
  %k = f32[1024] custom-call(%a), custom_call_target="tpu_custom_call", \
metadata={op_name="jit(step)/attention/call"}, \
backend_config={"cost_estimate":{"flops":"197000000000","transcendentals":"0"}}
}
"""
    text = PROGRAM.removesuffix("}\n") + kernel
    found = phase_estimate(text=text)
    assert found["operations_without_estimate"] == 2
    assert V5E.kernel_share < 1
    assert found["seconds"]["attention"] == pytest.approx(1e-3 / V5E.kernel_share)


def test_a_program_without_estimated_cycles_has_no_estimate():
    assert phase_estimate(text="ENTRY %main (x: f32[8]) -> f32[8] {\n}") is None
    assert phase_estimate(chip=None) is None


def test_rates_hours_and_cost_of_a_phase():
    phase = make_config().phases[0]
    found = phase_estimate(num_devices=8, price=2.0)
    step = found["step_seconds"]
    per_second = phase.global_batch_size / step
    assert found["sequences_per_second"] == pytest.approx(per_second)
    assert found["sequences_per_second_per_chip"] == pytest.approx(per_second / 8)
    flops = step_flops(make_config(), phase)
    assert found["mfu"] == pytest.approx(flops / step / (8 * 197e12))
    assert found["hours"] == pytest.approx(phase.num_steps * step / 3600)
    assert found["cost"] == pytest.approx(found["hours"] * 8 * 2)
    assert phase_estimate()["cost"] is None
