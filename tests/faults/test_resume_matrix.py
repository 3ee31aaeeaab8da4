"""Runs stopped by SIGTERM or SIGKILL resume bit-identically.

They stop in the middle or at the end of an epoch or in phase 2, on several numbers of
devices and processes.
"""

import pathlib

import numpy as np
import pytest

from bert_jax.checkpoint import integrity
from bert_jax.checkpoint import workdir as workdir_lib
from bert_jax.checkpoint.manager import Checkpoints
from bert_jax.data.batches import visits
from bert_jax.data.corpus import corpus
from bert_jax.loading import source, trained_run
from bert_jax.model import parameters
from bert_jax.training import evaluation
from launch.local import free_port
from tests.commands import ROOT, run, small_run, start, write_text
from tests.runs import assert_same_bits, assert_same_metrics, lines

pytestmark = pytest.mark.slow
KERNEL = "bert.layers.0.output.kernel"
PHASE = 60  # steps of each of the two
LAST = 2 * PHASE
# (processes, devices per process, signals by place). All signals passed at all places,
# also on eight devices; a start takes ten seconds, so this is a selection.
# test_kills.py kills runs of one process and one device.
CASES = [
    (1, 4, {"middle": "SIGTERM", "end": "SIGTERM"}),
    (2, 1, {"middle": "SIGKILL", "phase 2": "SIGTERM"}),
]


@pytest.fixture(scope="module")
def text(tmp_path_factory) -> pathlib.Path:
    directory = tmp_path_factory.mktemp("text")
    write_text(directory / "documents.txt", 100)
    return directory


def arguments(text: pathlib.Path, workdir: pathlib.Path) -> list[str]:
    values = {
        "data.num_shards": 4,
        "data.num_streams": 2,
        "model.num_hidden_layers": 1,
        "phases[0].num_steps": PHASE,
        "phases[0].sequence_length": 16,
        "phases[0].max_predictions": 5,
        "phases[1].num_steps": PHASE,
        "phases[1].sequence_length": 32,
        "phases[1].global_batch_size": 8,
        "phases[1].max_predictions": 10,
        "optimizer.reset_moments_by_phase": True,
        "optimizer.name": "muon",
        "optimizer.average_steps": LAST // 2 + 20,
        "loss_weights.z_loss": 1e-4,
        "data.final_masked_lm_prob": 0.3,
        "checkpoint.every_steps": 8,
        "eval.every_steps": 25,
        "log_every_steps": 7,  # a line has steps before and after a stop
    }
    config = f"--config={ROOT}/tests/two_phases.py"
    return [config, *small_run(text, **values)[1:], f"--workdir={workdir}"]


def train(
    num_processes: int, devices: int, arguments: list[str], kill_at: str = ""
) -> list[int]:
    """Returns the exit codes; `kill_at` is KILL_AT of the last process."""
    command = ("tests.faults.faulty_train", *arguments)
    if num_processes == 1:
        result = run(*command, devices=devices, KILL_AT=kill_at)
        assert result.returncode in (0, 75, -9), result.stdout + result.stderr
        return [result.returncode]
    address = f"localhost:{free_port()}"
    processes = []
    for i in range(num_processes):
        environment = {
            "JAX_COORDINATOR_ADDRESS": address,
            "JAX_NUM_PROCESSES": str(num_processes),
            "JAX_PROCESS_ID": str(i),
        }
        processes.append(
            start(
                *command,
                devices=devices,
                **environment,
                KILL_AT=kill_at if i == num_processes - 1 else "",
            )
        )
    try:
        output = [process.communicate(timeout=600) for process in processes]
    finally:
        for process in processes:
            process.kill()
    codes = [process.returncode for process in processes]
    assert set(codes) <= {0, 75, 76, -9}, output
    return codes


@pytest.fixture(scope="module")
def straight(text):
    """Returns a function that returns the workdir of an uninterrupted run."""
    made = {}

    def of(num_processes: int, devices: int) -> pathlib.Path:
        workdir = text / f"straight{num_processes}x{devices}"
        if workdir not in made:
            codes = train(num_processes, devices, arguments(text, workdir))
            made[workdir] = codes
            assert codes == [0] * num_processes
        return workdir

    return of


def end_of_epoch(workdir: pathlib.Path) -> int:
    """Returns the last step whose rows of the first stream are all of epoch 0."""
    config = workdir_lib.read_config(str(workdir))
    assert config is not None
    stream, _ = visits.make_streams(corpus.read(config), config, "train", 0, 0)
    return sum(stream.rows) // (config.phases[0].global_batch_size // 2)


def newest(workdir: pathlib.Path) -> int:
    return integrity.steps(str(workdir))[-1]


@pytest.mark.parametrize(("num_processes", "devices", "signals"), CASES)
def test_a_stopped_run_resumes_bit_identically(
    text, straight, tmp_path, num_processes, devices, signals
):
    expected = straight(num_processes, devices)
    end = end_of_epoch(expected)
    assert 16 <= end // 2 < end + 2 < PHASE
    stops = {"middle": end // 2, "end": end, "phase 2": PHASE + PHASE // 2}
    for place, name in signals.items():
        step = stops[place]
        codes = train(
            num_processes, devices, arguments(text, tmp_path), f"{step}:{name}"
        )
        if name == "SIGTERM":
            assert codes == [75] * num_processes
            assert newest(tmp_path) in (step, step + 1)
        else:
            assert codes == [76] * (num_processes - 1) + [-9]
            # The save of this step has not begun, the one before it may be in progress.
            assert step - 16 <= newest(tmp_path) <= step
    codes = train(num_processes, devices, arguments(text, tmp_path))
    assert codes == [0] * num_processes
    assert_same_bits(tmp_path, expected, LAST)
    assert_same_metrics(tmp_path, expected)


def test_the_mean_of_the_parameters_is_evaluated_and_exported(straight):
    workdir = straight(1, 4)
    config = workdir_lib.read_config(str(workdir))
    assert config is not None
    opened = trained_run.open_run(str(workdir), LAST)
    _, like = trained_run.abstract_params(config)
    params = Checkpoints(str(workdir)).restore(LAST, {"params": like}, opened.mesh)
    last, mean = map(parameters.by_name, (params["params"], opened.params))
    assert not np.allclose(last[KERNEL], mean[KERNEL], atol=1e-5)
    batches = evaluation.eval_batches(opened.corpus, config, 1)
    metrics = evaluation.evaluate(
        opened.eval_step, opened.params, batches, opened.mesh, 1
    )
    logged = [line for line in lines(workdir) if line["step"] == LAST]
    assert logged[-1]["eval_masked_lm_loss"] == pytest.approx(
        metrics["masked_lm_loss"], rel=1e-5
    )
    # Commands with --model read the mean, too.
    arrays = source.open_source(workdir, "--model").read([KERNEL])
    np.testing.assert_array_equal(arrays[KERNEL], mean[KERNEL])


def test_rows_and_masks_do_not_depend_on_the_mesh(text, straight, tmp_path):
    """A run starts on four devices, and resumes on eight and on two processes."""
    expected = straight(1, 4)
    for num_processes, devices, kill_at, codes, steps in (
        (1, 4, "20:SIGTERM", [75], range(20, 22)),
        (1, 8, f"{PHASE + 10}:SIGKILL", [-9], range(PHASE - 5, PHASE + 11)),
        (2, 1, "", [0, 0], [LAST]),
    ):
        found = train(num_processes, devices, arguments(text, tmp_path), kill_at)
        assert found == codes and newest(tmp_path) in steps
    # Other rows or masks would differ from the third digit on.
    assert_same_metrics(tmp_path, expected, rtol=1e-5)
