"""Configures JAX with eight simulated CPU devices, and defines shared fixtures."""

import contextlib
import ctypes
import dataclasses
import fcntl
import importlib.metadata
import importlib.util
import io
import itertools
import os
import pathlib
import shutil
import signal
import tempfile
import time
from types import SimpleNamespace

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
# Tests spend most of their time in compilation, which takes half as long without XLA's
# more expensive passes. With COMPILE=full, .ci/run compiles programs as users do.
if os.environ.get("COMPILE") != "full":
    os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"
    if importlib.metadata.version("jaxlib").startswith("0.10."):  # later ones refuse it
        os.environ["XLA_FLAGS"] += " --xla_cpu_use_fusion_emitters=false"
# All processes of a test run, including those that tests start, share an empty home
# directory, a directory of temporary files and one compilation cache, which does not
# affect results. They find the packages of this clone from any directory.
if "PYTEST_XDIST_WORKER" not in os.environ:
    libraries = ("HF_", "KERAS_", "MLFLOW_", "TFDS_", "TRACKIO_", "WANDB_", "XDG_")
    for name in [name for name in os.environ if name.startswith(libraries)]:
        os.environ.pop(name)
    _home = tempfile.TemporaryDirectory(prefix="bert_jax-home-")
    os.environ["HOME"] = _home.name
    os.environ["TMPDIR"] = tempfile.mkdtemp(dir=_home.name)
    os.environ["JAX_COMPILATION_CACHE_DIR"] = f"{_home.name}/compiled"
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0.3"
    root, given = str(pathlib.Path(__file__).parent.parent), os.getenv("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [root, given]))

import hypothesis
import jax
import numpy as np
import pytest

from bert_jax import config as config_lib
from bert_jax.distributed import mesh as mesh_lib
from bert_jax.monitoring import goodput
from tests import fake_bucket, one_phase
from tests.commands import run_well, small_run, write_text

# A shell starts background jobs with SIGINT ignored, which subprocesses would inherit.
signal.signal(signal.SIGINT, signal.default_int_handler)

jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")

# A suite passes or fails the same way every time: the ordinary one runs 5 fixed
# examples of each property, .ci/run (FUZZ=full) 60. FUZZ=random searches 600 new ones.
hypothesis.settings.register_profile(
    "few",
    max_examples=5,
    derandomize=True,
    deadline=None,
    suppress_health_check=list(hypothesis.HealthCheck),
    database=None,
)
hypothesis.settings.register_profile(
    "full",
    hypothesis.settings.get_profile("few"),
    max_examples=60,
)
hypothesis.settings.register_profile(
    "random",
    hypothesis.settings.get_profile("few"),
    max_examples=600,
    derandomize=False,
    print_blob=True,
)
hypothesis.settings.load_profile(os.environ.get("FUZZ", "few"))


# Files that take longest start first, so that the end of a test run is not idle.
LONGEST = """
    test_bucket test_interruption test_benchmarks test_resume_matrix test_local
    test_finetune test_build test_tuning_parity test_step test_notebook test_ray_workers
    test_check test_hlo test_pipeline test_divergence test_parity test_probes
    test_fuzzed_corpus test_kills test_speedrun test_full_disk test_minilm test_manager
    test_trackers test_stopping test_attention_tpu test_attention_gpu test_gpu
    test_tuned test_encoder test_optimizer test_cli test_predict test_train
""".split()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Orders files, which `--no-loadscope-reorder` keeps, and skips what cannot run."""
    ranks = {name: rank for rank, name in enumerate(LONGEST)}
    items.sort(key=lambda item: ranks.get(item.path.stem, len(ranks)))
    if importlib.util.find_spec("libtpu") is None:
        for item in items:
            if item.get_closest_marker("libtpu"):
                item.add_marker(pytest.mark.skip(reason="libtpu is not installed"))


@pytest.fixture
def bucket(monkeypatch):
    """Buckets of a local server, of which this process can use `gs://b`."""
    with fake_bucket.Bucket("b") as bucket:
        for name, value in bucket.environment.items():
            monkeypatch.setenv(name, value)
        yield bucket


def slow(*values):
    """Returns the values of a case of a test that is marked as slow."""
    return pytest.param(*values, marks=pytest.mark.slow)


def make_config(**changes) -> config_lib.ExperimentConfig:
    """Returns a very small config; keys with __ for dots: model__hidden_size=32."""
    config = one_phase.get_config()
    defaults = {
        "tokenizer__vocab_size": 97,
        "model__hidden_size": 32,
        "model__intermediate_size": 64,
        "model__num_attention_heads": 4,
        "model__max_position_embeddings": 32,
        "optimizer__warmup_steps": 2,
        "optimizer__learning_rate": 1e-3,
    }
    phase = {
        "num_steps": 20,
        "sequence_length": 16,
        "global_batch_size": 8,
        "max_predictions": 4,
    }
    phase |= changes.pop("phase", {})
    flat = {key.replace("__", "."): x for key, x in (defaults | changes).items()}
    config.update_from_flattened_dict(flat)
    config.phases[0].update(phase)
    return config_lib.from_config_dict(config)


def two_phases(config=None, **changes) -> config_lib.ExperimentConfig:
    """Returns a config with a second phase, of 5 steps after 20 unless given."""
    config = config or make_config()
    (first,) = config.phases
    second = dataclasses.replace(first, **{"num_steps": 5} | changes)
    return dataclasses.replace(config, phases=(first, second))


def make_batch(
    config: config_lib.ExperimentConfig, seed: int = 0
) -> dict[str, np.ndarray]:
    """Returns a random batch with padding, two segments and unused mask slots."""
    random = np.random.default_rng(seed)
    phase = config.phases[0]
    B, T, P = phase.global_batch_size, phase.sequence_length, phase.max_predictions
    lengths_B1 = random.integers(T // 2, T + 1, (B, 1))
    position_T = np.arange(T)[None]
    real_BT = position_T < lengths_B1
    num_masked_B1 = random.integers(1, P + 1, (B, 1))
    used_BP = np.arange(P)[None] < num_masked_B1
    positions_BP = np.sort(
        np.stack([random.permutation(np.arange(1, T // 2))[:P] for _ in range(B)]), 1
    )
    batch = {
        "input_ids": np.where(
            real_BT, random.integers(5, config.tokenizer.vocab_size, (B, T)), 0
        ),
        "segment_ids": (position_T >= lengths_B1 // 2) & real_BT,
        "position_ids": np.broadcast_to(position_T, (B, T)),
        "sequence_ids": real_BT,
        "masked_lm_positions": np.where(used_BP, positions_BP, 0),
        "masked_lm_ids": np.where(
            used_BP, random.integers(5, config.tokenizer.vocab_size, (B, P)), 0
        ),
        "next_sentence_positions": np.zeros((B, 1)),
        "next_sentence_labels": random.integers(0, 2, (B, 1)),
    }
    batch = {name: rows.astype(np.int32) for name, rows in batch.items()}
    batch["masked_lm_weights"] = used_BP.astype(np.float32)
    batch["next_sentence_weights"] = np.ones((B, 1), np.float32)
    return batch


@pytest.fixture(autouse=True, scope="session")
def directory_of_fixtures(tmp_path_factory):
    """Runs the fixtures of files and sessions in an empty directory."""
    with contextlib.chdir(tmp_path_factory.mktemp("fixtures")):
        yield


@pytest.fixture(autouse=True)
def directory_of_the_test(tmp_path, directory_of_fixtures):
    """Runs a test, and the programs that it starts, in its own directory."""
    with contextlib.chdir(tmp_path):
        yield


@pytest.fixture(autouse=True, scope="session")
def first_mesh():
    """Sets a mesh of one device before the first test and its fixtures."""
    return use_mesh(1, 1, 1)


@pytest.fixture(autouse=True)
def one_device_mesh(first_mesh):
    """Sets the mesh of one device again after a test that has set another.

    It is set after the test because fixtures of the next file run before this one.
    """
    yield
    jax.set_mesh(first_mesh)


NUM_TESTS = itertools.count()


@pytest.fixture(autouse=True)
def few_compiled_programs():
    """Drops compiled programs when there are many.

    JAX keeps each, with some tens of memory mappings and, in these tests, half a
    megabyte for each mapping: 11 GB for 20,000. Linux allows a process 65,530, and
    XLA's compiler crashes with a segmentation fault when there are none left. They are
    counted after every eighth test, since that takes as long as a quick test.
    """
    yield
    mappings = pathlib.Path("/proc/self/maps")
    if next(NUM_TESTS) % 8 or not mappings.exists():
        return
    if mappings.read_bytes().count(b"\n") > 6_000:
        jax.clear_caches()
        if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):  # glibc
            trim(0)  # the freed memory would otherwise stay with the process


def use_mesh(data: int, fsdp: int, tensor: int, devices=None) -> jax.sharding.Mesh:
    """Makes and sets a mesh over the first data * fsdp * tensor devices.

    The default devices are simulated ones; a test may give those of a TPU topology.
    """
    mesh = jax.make_mesh(
        (data, fsdp, tensor),
        mesh_lib.AXES,
        axis_types=(jax.sharding.AxisType.Explicit,) * 3,
        devices=(devices or jax.devices())[: data * fsdp * tensor],
    )
    jax.set_mesh(mesh)
    return mesh


def be_a_terminal(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """Replaces standard output by one that claims to be a terminal."""
    written = io.StringIO()
    monkeypatch.setattr(written, "isatty", lambda: True)
    monkeypatch.setattr("sys.stdout", written)
    monkeypatch.setenv("TERM", "xterm")
    return written


@pytest.fixture
def hub(monkeypatch, tmp_path):
    """A Hugging Face Hub on this machine, and an empty cache of its library."""
    from huggingface_hub import constants

    from tests import fake_hub

    with fake_hub.Hub() as found:
        found.use(monkeypatch)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hf" / "hub"))
        yield found


@pytest.fixture
def slept(monkeypatch):
    """Makes time.sleep return at once, and returns the list of its arguments."""
    delays = []
    monkeypatch.setattr(time, "sleep", delays.append)
    return delays


@pytest.fixture
def advance(monkeypatch):
    """Stops the clocks of goodput, and returns a function that advances them."""
    now = [1000.0]
    monkeypatch.setattr(goodput, "clock", lambda: now[0])
    monkeypatch.setattr(goodput, "time", SimpleNamespace(time=lambda: now[0] + 5000.0))

    def advance(seconds):
        now[0] += seconds

    return advance


@pytest.fixture(scope="module")
def text(tmp_path_factory) -> pathlib.Path:
    """A directory with a text."""
    directory = tmp_path_factory.mktemp("text")
    write_text(directory / "documents.txt")
    return directory


TRAINED = {"phases[0].num_steps": 20, "checkpoint.every_steps": 10}


@pytest.fixture(scope="session")
def trained():
    """A directory with a text, its corpus, a run of TRAINED, and its stdout.

    The processes of a test run share it.
    """
    directory = pathlib.Path(os.environ["HOME"], "trained")
    with open(f"{directory}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (directory / "stdout").exists():
            shutil.rmtree(directory, ignore_errors=True)
            directory.mkdir()
            write_text(directory / "documents.txt")
            train(directory)
    return directory


def train(directory: pathlib.Path) -> None:
    arguments = small_run(directory, **TRAINED)
    stdout = run_well("bert_jax.prepare", *arguments)
    assert "documents" in stdout and str(directory / "corpus") in stdout
    stdout = run_well("bert_jax.train", *arguments, f"--workdir={directory / 'run'}")
    assert "tokenizer: training" not in stdout
    (directory / "stdout").write_text(stdout)


@pytest.fixture(scope="session")
def newest(trained, first_mesh):
    """The newest checkpoint of the run in `trained`, opened on eight devices."""
    from bert_jax.loading import trained_run

    opened = trained_run.open_run(str(trained / "run"), None)
    jax.set_mesh(first_mesh)
    return opened


@pytest.fixture
def source(tmp_path):
    """A directory with an exported model, and its weights by name."""
    from tests import models  # which imports this file

    directory = tmp_path / "source"
    directory.mkdir()
    return directory, models.export_to(directory)


@pytest.fixture
def directory(source):
    """A directory with an exported model."""
    return source[0]
