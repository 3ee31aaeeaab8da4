"""The report as people and programs get it, and its numbers against arithmetic."""

import dataclasses
import importlib.util
import json
import os
import signal
import threading
import time

import jax
import pytest

from bert_jax import host_memory, preflight, preflight_report, topologies, trials
from bert_jax.compiled_program import CompiledProgram
from bert_jax.config import ConfigError
from tests.commands import run, run_well, start
from tests.conftest import make_config, use_mesh

needs_libtpu = pytest.mark.skipif(
    not importlib.util.find_spec("libtpu"), reason="libtpu is not installed"
)
TINY = [
    "--config=tests/one_phase.py",
    "--config.model.num_hidden_layers=1",
    "--config.data.corpus_dir=nowhere",
]


@needs_libtpu
def test_json_of_a_slice_that_is_not_here(tmp_path):
    result = run(
        "bert_jax.preflight",
        *TINY,
        "--topology=v5e:2x2",
        "--json",
        "--nosearch",
        "--price_per_chip_hour=2",
        f"--workdir={tmp_path / 'run'}",
    )
    assert result.returncode == 0, result.stderr
    begun = "preflight: phase 1 of 1, the config's batch: compiling 1 layers, 8 x 64"
    assert begun in result.stderr
    report = json.loads(result.stdout)
    assert report["fits"] is True
    assert (report["devices"], report["chips"]) == (4, 4)
    assert report["compute_dtype"] == "bfloat16"  # the slice's, though this is a CPU
    assert report["mesh"] == {"data": 4, "fsdp": 1, "tensor": 1}
    assert any("no corpus in nowhere" in line for line in report["checks"])
    assert any("can be written" in line for line in report["checks"])
    assert not (tmp_path / "run").exists()
    (phase,) = report["phases"]
    compiled, estimated = phase["compiled"], phase["estimated"]
    arguments = compiled["arguments"]
    # Two moments of every parameter, and two counters that are scalars.
    moments = arguments["optimizer_moments"] - 2 * arguments["parameters"]
    assert 0 <= moments <= 16
    assert arguments["batch"] == 8 * 4 * (4 * 64 + 3 * 13 + 3 * 1)
    assert compiled["memory"]["arguments"] >= sum(arguments.values())
    assert compiled["memory"]["aliased"] > 3 * arguments["parameters"]
    memory = compiled["memory"]
    assert memory["total"] == (
        memory["arguments"]
        + memory["temporaries"]
        + (memory["outputs"] - memory["aliased"])  # the metrics, and padding
        + memory["code"]
    )
    assert 0 < memory["outputs"] - memory["aliased"] < 2**16
    assert (phase["fits_by"], phase["from_few_layers"]) == ("compiler", None)
    assert {each["kind"] for each in compiled["collectives"]} == {"all-reduce"}
    step = sum(estimated["seconds"].values())
    assert estimated["step_seconds"] == pytest.approx(step)
    assert report["hours"] == pytest.approx(2000 * step / 3600)
    assert report["cost"] == pytest.approx(report["hours"] * 4 * 2)
    rate = 32 / step
    assert estimated["sequences_per_second"] == pytest.approx(rate)
    flops = phase["model_flops"] / 32
    assert estimated["mfu"] == pytest.approx(rate * flops / (4 * 197e12))


def test_local_has_no_cycles_but_memory_flops_and_collectives():
    stdout = run_well("bert_jax.preflight", *TINY, "--topology=local", devices=8)
    assert "8 x cpu" in stdout and "float32" in stdout
    assert "whether it fits is not known" in stdout
    assert "only the TPU's compiler tells cycles" in stdout
    assert "all-reduce" in stdout and "model FLOPs" in stdout
    assert "hours" not in stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], ["--topology is missing", "v5e:16x16", "local"]),
        (["--topology=local", "--devices=2"], ["--devices and --topology exclude"]),
        (
            ["--topology=local", "--slices=2"],
            ["--slices=2 goes with --devices", "2*v5e:16x16"],
        ),
        (["--topology=v9:2x2"], ["--topology=v9:2x2 is not known", "tpu7x:4x4x4"]),
        (
            ["--topology=local", "--config.phases[0].global_batch_size=65"],
            ["config.phases[0].global_batch_size=65", "try 64 or 66"],
        ),
    ],
)
def test_mistakes_are_a_line_and_exit_code_2(arguments, words):
    result = run("bert_jax.preflight", *TINY, *arguments, devices=2)
    assert result.returncode == 2 and not result.stdout
    (line,) = [x for x in result.stderr.splitlines() if x.startswith("error: ")]
    assert all(word in line for word in words)


def test_with_a_number_of_devices_nothing_is_compiled():
    result = run("bert_jax.preflight", *TINY, "--devices=16")
    assert result.returncode == 0 and not result.stderr
    assert result.stdout == (
        "the config goes onto 16 device(s), mesh data 16 x fsdp 1 x tensor 1;"
        " phase 1: 32 sequences, 2 a device at a time\n"
    )


@pytest.mark.slow
@needs_libtpu
def test_long_rows_with_remat_do_not_overflow_the_stack_of_the_compiler():
    """libtpu ended with signal 11 where its threads had the stack it gives them."""
    changes = {
        "model.num_hidden_layers": 1,
        "remat": "full",
        "data.corpus_dir": "nowhere",
        "phases[0].global_batch_size": 64,
        "phases[1].global_batch_size": 64,
    }
    flags = [f"--config.{key}={value}" for key, value in changes.items()]
    where = ["--config=configs/base.py", "--topology=v5e:2x2", "--nosearch"]
    assert "It fits." in run_well("bert_jax.preflight", *where, *flags)


@needs_libtpu
def test_sharding_the_optimizer_cuts_its_memory_by_the_devices():
    plain, split = (
        preflight.preflight(
            make_config(mesh__shard_optimizer=on), "v5e:2x2", search=False
        )["phases"][0]["compiled"]
        for on in (False, True)
    )
    before, after = (each["arguments"]["optimizer_moments"] for each in (plain, split))
    # Matrices to a quarter; biases and scales, 3% of so narrow a model, stay whole.
    assert 0.25 < after / before < 0.30
    assert plain["arguments"]["parameters"] == split["arguments"]["parameters"]
    less = plain["memory"]["arguments"] - split["memory"]["arguments"]
    assert less >= before - after
    kinds = {each["kind"] for each in split["collectives"]}
    assert "all-gather" in kinds and "all-to-all" not in kinds


@pytest.fixture
def small_chip(monkeypatch):
    """Bytes of a chip that the TPU's compiler is told of: small programs are fast."""
    limit_mib, compile_step = 128, trials.compile_step

    def compile_for_less(config, mesh, phase_index, options=None):
        options = options or {"xla_tpu_max_hbm_size_mib": limit_mib}
        return compile_step(config, mesh, phase_index, options)

    monkeypatch.setattr(trials, "compile_step", compile_for_less)
    monkeypatch.setattr(preflight.Preflight, "hbm_bytes", limit_mib * 2**20)
    return limit_mib * 2**20


@needs_libtpu
@pytest.mark.slow
def test_a_batch_that_does_not_fit_is_told_with_the_largest_that_does(small_chip):
    sequences = 2**13
    config = make_config(
        model__num_hidden_layers=1,
        model__hidden_size=128,
        phase={"sequence_length": 32, "global_batch_size": 4 * sequences},
    )
    report = preflight.preflight(config, "v5e:2x2", search=False)
    assert report["fits"] is False
    (phase,) = report["phases"]
    assert (phase["fits_by"], phase["from_few_layers"]) == ("compiler", None)
    hbm = phase["compiled"]["hbm_bytes"]
    assert phase["compiled"]["needed_bytes"] > hbm == small_chip
    largest = phase["largest_micro_batch"]
    assert trials.FEW_ROWS < largest < sequences and largest % trials.TILE == 0
    assert 0.7 * hbm < phase["largest"]["total_bytes"]
    remedy = report["remedy"]
    assert remedy["flag"].startswith("--config.accumulation_steps=")
    parts = int(remedy["flag"].partition("=")[2])
    assert sequences / largest <= parts <= 2 * sequences / largest
    assert sequences % parts == 0
    text = preflight_report.table(report)
    assert "DOES NOT FIT" in text and remedy["flag"] in text
    assert f"{largest:,} sequences a device" in text


@needs_libtpu
@pytest.mark.slow
def test_what_few_layers_tell_is_near_what_the_compiler_says(small_chip):
    config = make_config(
        model__num_hidden_layers=4,
        model__hidden_size=128,
        phase={"sequence_length": 32, "global_batch_size": 4 * 2**11},
    )
    devices = topologies.devices("v5e:2x2")
    chip = topologies.chip_of(devices[0].device_kind)
    flight = preflight.Preflight(config, use_mesh(4, 1, 1, devices), chip, price=None)
    early = flight.few_layers(0)
    told, refused = flight.own(0, early), flight.compile(config, 0)
    assert not told.compiled and refused.compiled and not refused.fits
    assert told.needed_bytes == pytest.approx(refused.needed_bytes, rel=0.25)
    assert told.needed_bytes > 3 * small_chip
    assert told.arguments == refused.arguments
    # A batch that may fit is for the compiler to judge.
    few = trials.changed(config, flight.mesh, 0, sequences=8)
    flight = preflight.Preflight(few, flight.mesh, chip, price=None)
    assert flight.own(0, early).fits


def test_what_is_wrong_with_one_phase_is_told_while_another_is_compiled():
    config, over = make_config(), threading.Event()
    config = dataclasses.replace(config, phases=config.phases * 2)
    flight = preflight.Preflight(config, use_mesh(2, 1, 1), None, None)

    def result(own, phase_index):
        assert own.mesh.shape == jax.sharding.get_abstract_mesh().shape
        if phase_index == 0:
            raise ConfigError("wrong")
        assert over.wait(60)

    try:
        with pytest.raises(ConfigError, match="wrong"):
            flight.of_phases(result)
        assert not over.is_set()
    finally:
        over.set()


@pytest.mark.parametrize(("free_gib", "num"), [(5, 1), (12, 1), (14, 2), (None, 2)])
def test_phases_are_compiled_side_by_side_where_memory_allows_it(
    monkeypatch, capsys, free_gib, num
):
    config = make_config(model__num_hidden_layers=12)
    config = dataclasses.replace(config, phases=config.phases * 2)
    chip = topologies.CHIPS["TPU v4"]  # 6.5 GiB for 12 layers
    flight = preflight.Preflight(config, use_mesh(2, 1, 1), chip, None)
    free = free_gib and free_gib * 2**30
    monkeypatch.setattr(host_memory, "available_bytes", lambda: free)
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    assert flight.num_at_once() == num
    said = capsys.readouterr().err
    assert ("1 of 2 phases at a time: each may take 6.500 GiB" in said) == (num == 1)


@pytest.mark.slow
def test_ctrl_c_ends_it_in_the_middle_of_a_compilation():
    flags = ["--config=configs/large.py", "--topology=local", "--nosearch"]
    process = start("bert_jax.preflight", *flags)
    assert process.stderr is not None
    while "compiling 24 layers" not in process.stderr.readline():
        assert process.poll() is None
    time.sleep(5)
    process.send_signal(signal.SIGINT)
    try:
        _, err = process.communicate(timeout=20)
    finally:
        process.kill()
    assert process.returncode == 130 and err.endswith("stopped\n")


class MadeUp(preflight.Preflight):
    """A compiler of programs of a thousand cycles a layer, or more under remat."""

    def compile(self, config, phase_index):
        sequences = trials.micro_batch(config, self.mesh, phase_index)
        needed = self.early(config, phase_index).of(sequences)
        assert needed <= trials.FAR_TOO_LARGE * self.hbm_bytes
        if needed > self.hbm_bytes:
            return trials.Trial(config, 0.0, {}, needed_bytes=int(needed))
        cycles = config.model.num_hidden_layers * 1000
        cycles = cycles * {"none": 10, "matmuls": 11, "full": 13}[config.remat] // 10
        line = '  %a = f32[8] fusion(%b), backend_config={"estimated_cycles":"CYCLES"}'
        program = "ENTRY %main (b: f32[8]) -> f32[8] {\n" + line + "\n}"
        return trials.Trial(
            config,
            0.0,
            {"parameters": 5},
            {"arguments": 5, "total": int(needed)},
            CompiledProgram(program.replace("CYCLES", str(cycles))),
        )

    def early(self, config, phase_index):
        a_sequence = {"none": 4.0, "matmuls": 2.0, "full": 1.0}[config.remat]
        return trials.EarlyMemory(64, 64 * a_sequence * 2**20, a_sequence * 2**20)


def test_a_search_tells_what_remat_buys():
    config = make_config(model__num_hidden_layers=5)
    chip = topologies.CHIPS["TPU v5 lite"]
    flight = MadeUp(config, use_mesh(8, 1, 1), chip, price=None)
    phase = flight.phase(0, search=True)
    none, full, matmuls = phase["remat"]
    assert none["remat"] == "none" and none["cycles"] == 5000
    assert none["largest_micro_batch"] == phase["largest_micro_batch"] > 3900
    for each, share, cycles in ((full, 4, 13), (matmuls, 2, 11)):
        largest = none["largest_micro_batch"] * share
        assert each["largest_micro_batch"] == pytest.approx(largest, rel=0.01)
        # Three layers' difference, over the two that compute every position.
        more = (cycles - 10) * 100 * 3 / 2 * 4
        assert each["cycles"] == pytest.approx(5000 + more)
        assert each["total_bytes"] < none["total_bytes"]


def test_a_far_too_large_batch_is_not_compiled_and_said_to_be_estimated():
    config = make_config(
        model__num_hidden_layers=5, phase={"global_batch_size": 8 * 40_000}
    )
    chip = topologies.CHIPS["TPU v5 lite"]
    flight = MadeUp(config, use_mesh(8, 1, 1), chip, price=None)
    for search in (False, True):
        phase = flight.phase(0, search)
        assert (phase["fits"], phase["fits_by"]) == (False, "few_layers")
        assert phase["compiled"] is None and phase["estimated"] is None
        found = phase["from_few_layers"]
        assert found["needed_bytes"] == 40_000 * 4 * 2**20
        # Arguments are known without a compiler; two moments, and a counter.
        arguments = found["arguments"]
        assert arguments["optimizer_moments"] == 2 * arguments["parameters"] + 4
        assert 3900 < phase["largest_micro_batch"] < 4100
        text = "\n".join(preflight_report._phase(phase, {"phases": [phase]}))
        assert "needs about 156.250 GiB of 15.750 GiB; estimated from 2" in text
        assert "not compiled, of one device" in text and "(facts)" not in text
