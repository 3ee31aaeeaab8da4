"""Stopped anywhere, in any way, on any mesh: the run that goes on is the straight one.

Each run is stopped three times: in the middle of an epoch, with the last whole batch of
one, and in phase 2.
"""

import math
import pathlib
import signal

import pytest

from bert_jax import config as config_lib
from bert_jax.data import corpus as corpus_lib
from bert_jax.data import pipeline
from launch import local
from tests.commands import run, run_well, small_run, start, write_text
from tests.runs import assert_same_bits, exact_lines, lines

pytestmark = pytest.mark.slow
TRAIN = "tests.faults.faulty_train"
PHASE = 300  # steps; a notice takes up to a second to come round, a step may take 8 ms


@pytest.fixture(scope="module")
def text(tmp_path_factory) -> pathlib.Path:
    directory = tmp_path_factory.mktemp("text")
    write_text(directory / "documents.txt", 120)
    (directory / "two_phases.py").write_text(
        "import ml_collections\n"
        "from configs import tiny\n"
        "def get_config():\n"
        "    config = tiny.get_config()\n"
        "    second = ml_collections.ConfigDict(config.phases[0].to_dict())\n"
        "    config.phases = (config.phases[0], second)\n"
        "    return config\n"
    )
    return directory


def arguments(text: pathlib.Path, workdir: pathlib.Path, **changes) -> list[str]:
    values = {
        "data.num_shards": 2,
        "data.num_streams": 2,
        "phases[0].num_steps": PHASE,
        "phases[0].sequence_length": 16,
        "phases[1].num_steps": PHASE,
        "phases[1].sequence_length": 32,
        "phases[1].global_batch_size": 8,
        "phases[1].max_predictions": 5,
        "checkpoint.every_steps": 2 * PHASE,
        "eval.every_steps": 2 * PHASE,
        "log_every_steps": 7,  # lines whose steps no stop ends with
    }
    given = small_run(text, **values | changes)[1:]
    return [f"--config={text}/two_phases.py", *given, f"--workdir={workdir}"]


def end_of_epoch(straight: pathlib.Path) -> int:
    """Returns the step that takes the last whole batch of a stream's first epoch."""
    config = config_lib.from_json((straight / "config.json").read_text())
    streams = pipeline.make_streams(
        corpus_lib.read(config), config, "train", config.seed, 0
    )
    rows = min(sum(stream.rows) for stream in streams)
    step = rows // (config.phases[0].global_batch_size // len(streams))
    assert 20 < step < PHASE // 2
    return step


def run_two(given: list[str], kill_at: tuple[str, str] = ("", "")) -> list[int]:
    """Runs in two processes, each with its KILL_AT, and returns their exit codes."""
    address = f"127.0.0.1:{local.free_port()}"
    processes = [
        start(
            TRAIN,
            *given,
            JAX_COORDINATOR_ADDRESS=address,
            JAX_NUM_PROCESSES="2",
            JAX_PROCESS_ID=str(i),
            JAX_CPU_COLLECTIVES_IMPLEMENTATION="gloo",
            KILL_AT=kill_at[i],
        )
        for i in range(2)
    ]
    outputs = [process.communicate(timeout=600) for process in processes]
    codes = [process.returncode for process in processes]
    assert set(codes) <= {0, 75, -signal.SIGKILL}, outputs
    return codes


@pytest.fixture(scope="module")
def straight(text):
    """Returns the workdir of an undisturbed run on a number of devices."""
    made = {}

    def find(devices: int) -> pathlib.Path:
        if devices not in made:
            made[devices] = text / f"straight{devices}"
            run_well(TRAIN, *arguments(text, made[devices]), devices=devices)
        return made[devices]

    return find


@pytest.mark.parametrize("name", ["SIGTERM", "SIGKILL"])
@pytest.mark.parametrize("devices", [1, 4, 8])
def test_one_process(text, straight, tmp_path, devices, name):
    expected = straight(devices)
    epoch_end = end_of_epoch(expected)
    # A checkpoint with each last batch of an epoch, so that SIGKILL can stop there.
    given = arguments(text, tmp_path, **{"checkpoint.every_steps": epoch_end})
    for stop in (epoch_end // 2, epoch_end, PHASE + 50):
        # A step later: what step `stop` saves is then complete.
        result = run(TRAIN, *given, devices=devices, KILL_AT=f"{stop + 1}:{name}")
        code = 75 if name == "SIGTERM" else -signal.SIGKILL
        assert result.returncode == code, result.stdout + result.stderr
    run_well(TRAIN, *given, devices=devices)
    last = 2 * PHASE
    assert_same_bits(tmp_path, expected, last)
    assert exact_lines(tmp_path) == exact_lines(expected)


def test_two_processes(text, tmp_path):
    expected, stopped = tmp_path / "straight", tmp_path / "stopped"
    assert run_two(arguments(text, expected)) == [0, 0]
    epoch_end = end_of_epoch(expected)
    given = arguments(text, stopped, **{"checkpoint.every_steps": epoch_end})
    # SIGTERM to one of the two, kill -9 to both, SIGTERM to the other.
    first = f"{epoch_end // 2}:SIGTERM"
    assert run_two(given, ("", first)) == [75, 75]
    killed = f"{epoch_end + 1}:SIGKILL"
    assert run_two(given, (killed, killed)) == [-signal.SIGKILL] * 2
    assert run_two(given, (f"{PHASE + 50}:SIGTERM", "")) == [75, 75]
    assert run_two(given) == [0, 0]
    assert_same_bits(stopped, expected, 2 * PHASE)
    assert exact_lines(stopped) == exact_lines(expected)


@pytest.mark.parametrize("name", ["SIGTERM", "SIGKILL"])
def test_on_another_mesh_the_same_rows_and_nearly_the_same_losses(
    text, straight, tmp_path, name
):
    """From 1 device to 8 to 4; rows and masks are tests of the pipeline."""
    stop = 150
    given = arguments(text, tmp_path, **{"checkpoint.every_steps": 100})
    for devices, at in ((1, stop), (8, PHASE + stop)):
        result = run(TRAIN, *given, devices=devices, KILL_AT=f"{at}:{name}")
        assert result.returncode in (75, -signal.SIGKILL), result.stderr
    run_well(TRAIN, *given, devices=4)
    found, expected = lines(tmp_path), lines(straight(1))
    assert [line["step"] for line in found] == [line["step"] for line in expected]
    for a, b in zip(found, expected, strict=True):
        name = "loss" if "loss" in b else "eval_masked_lm_loss"
        assert math.isclose(a[name], b[name], rel_tol=2e-3), (a, b)
