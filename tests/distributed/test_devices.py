"""Tests of opening devices: the requested platform, or an error."""

import os
import sys
import types

import jax
import pytest

from bert_jax import cli
from bert_jax.distributed import chips, devices
from bert_jax.errors import ConfigError
from tests.commands import ENV, run, run_code, small_run

BUSY = (
    "Unable to initialize backend 'tpu': ABORTED: The TPU is already in use by process"
    " with pid 176028. Not attempting to load libtpu.so in this process. (set"
    " JAX_PLATFORMS='' to automatically choose an available backend)"
)


@pytest.mark.slow
def test_train_exits_if_the_platform_is_absent(tmp_path, monkeypatch):
    monkeypatch.setitem(ENV, "JAX_PLATFORMS", "tpu")
    result = run(
        "bert_jax.train",
        "--config=configs/tiny.py",
        f"--workdir={tmp_path / 'run'}",
        f"--config.data.corpus_dir={tmp_path / 'corpus'}",
    )
    assert result.returncode == 2
    last = result.stderr.splitlines()[-1]
    assert "JAX_PLATFORMS=tpu but its devices cannot be opened" in last
    assert "JAX_PLATFORMS=cpu" in last
    assert list(tmp_path.iterdir()) == []


@pytest.mark.libtpu
def test_a_machine_with_libtpu_and_no_tpu_trains_on_its_cpu(
    trained, tmp_path, monkeypatch
):
    monkeypatch.delitem(ENV, "JAX_PLATFORMS")
    arguments = small_run(trained, **{"phases[0].num_steps": 8})
    result = run("bert_jax.train", *arguments, f"--workdir={tmp_path / 'run'}")
    assert result.returncode == 0
    assert result.stderr == "this machine has no TPU: running on the CPU\n"
    assert "Trained to step 8" in result.stdout


@pytest.mark.libtpu
def test_a_tpu_vm_whose_tpu_cannot_be_opened_exits_with_2(tmp_path, monkeypatch):
    monkeypatch.delitem(ENV, "JAX_PLATFORMS")
    result = run("bert_jax.train", "--config=tiny", JAX_FORCE_TPU_INIT="1")
    assert result.returncode == 2
    last = result.stderr.splitlines()[-1]
    assert "error: this machine has an accelerator but its devices cannot" in last
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (None, "--fibers_default_thread_stack_size=1048576"),
        ("--a=1", "--a=1 --fibers_default_thread_stack_size=1048576"),
        (
            "--fibers_default_thread_stack_size=9",
            "--fibers_default_thread_stack_size=9",
        ),
    ],
)
def test_libtpu_stack_is_set_unless_the_environment_sets_it(
    monkeypatch, given, expected
):
    monkeypatch.setenv("LIBTPU_INIT_ARGS", given or "")  # also restores it afterwards
    devices.set_libtpu_stack()
    devices.set_libtpu_stack()
    assert os.environ["LIBTPU_INIT_ARGS"] == expected


def test_busy_tpu_error_names_the_process(monkeypatch):
    def refuse():
        raise RuntimeError(BUSY)

    monkeypatch.setattr(jax, "default_backend", refuse)
    monkeypatch.setenv("JAX_PLATFORMS", "tpu")
    with pytest.raises(ConfigError) as error:
        devices.open_devices()
    text = str(error.value)
    assert text.startswith("JAX_PLATFORMS=tpu but its devices cannot be opened")
    assert "already in use by process with pid 176028" in text
    assert "set JAX_PLATFORMS=cpu" in text and "JAX_PLATFORMS=''" not in text


CUDA = "jax_plugins.xla_cuda13"


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """Returns a function that simulates a machine where JAX can open only the CPU."""

    def simulate(installed=(), num_chips=0, has_gpu=False, files=()):
        config = types.SimpleNamespace(jax_platforms="")
        config.update = lambda name, value: setattr(config, name, value)
        utils = devices.hardware_utils
        counted = "num_available_tpu_chips_and_device_id"
        monkeypatch.setattr(devices.jax, "config", config)
        monkeypatch.setattr(devices, "_is_installed", lambda name: name in installed)
        monkeypatch.setattr(utils, counted, lambda: (num_chips, None))
        monkeypatch.setattr(utils, "has_visible_nvidia_gpu", lambda: has_gpu)
        patterns = [str(tmp_path) + pattern for pattern in devices.TPU_FILES]
        monkeypatch.setattr(devices, "TPU_FILES", patterns)
        for file in files:
            path = tmp_path / file
            path.parent.mkdir(parents=True)
            path.touch()
        return config

    return simulate


@pytest.mark.parametrize(
    ("installed", "files", "absent"),
    [
        ([], [], None),
        (["libtpu"], [], "TPU"),
        ([CUDA], [], "NVIDIA GPU"),
        (["libtpu", CUDA], [], "TPU or NVIDIA GPU"),
        (["libtpu"], ["dev/vfio/vfio", "dev/accel/accel0"], "TPU"),
    ],
)
def test_a_machine_without_an_accelerator_uses_its_cpu(
    machine, capsys, installed, files, absent
):
    config = machine(installed, files=files)
    assert not devices.has_accelerator()
    devices.open_devices()
    notice = f"this machine has no {absent}: running on the CPU\n"
    assert capsys.readouterr().err == (notice if absent else "")
    assert config.jax_platforms == ("cpu" if absent else "")


@pytest.mark.parametrize(
    ("installed", "present", "name"),
    [
        (["libtpu"], {"num_chips": 4}, "TPU"),
        (["libtpu"], {"files": ["dev/accel0"]}, "TPU"),
        (["libtpu", CUDA], {"files": ["dev/vfio/0"]}, "TPU"),
        (["libtpu", CUDA], {"has_gpu": True}, "NVIDIA GPU"),
    ],
)
def test_an_accelerator_that_cannot_be_opened_is_an_error(
    machine, capsys, installed, present, name
):
    machine(installed, **present)
    assert devices.has_accelerator()
    with pytest.raises(ConfigError, match=f"has a {name} but its devices cannot be"):
        devices.open_devices()
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("installed", [[], [CUDA]])
def test_tpu_chips_without_libtpu_are_an_error(machine, installed):
    machine(installed, num_chips=4)
    with pytest.raises(
        ConfigError, match=r"4 TPU chips but no libtpu; pip install .jax.tpu"
    ):
        devices.open_devices()


def test_jax_platforms_decides_about_accelerators(machine):
    config = machine(["libtpu"], num_chips=4)
    for config.jax_platforms, expected in (("cpu", False), ("tpu,cpu", True)):
        assert devices.has_accelerator() == expected


# The environment of the second of four hosts of a TPU slice on GKE.
SLICE = {
    "JAX_FORCE_TPU_INIT": "1",
    "TPU_WORKER_HOSTNAMES": "10.0.0.1,10.0.0.2,10.0.0.3,10.0.0.4",
    "TPU_WORKER_ID": "1",
}
NOTICE = (
    "this host's TPU can only be opened by all 4 hosts together: running on the CPU"
)


def test_private_names_of_jax_exist():
    """Checks the private names that devices.py uses, which a new JAX may move."""
    num_chips, _ = devices.hardware_utils.num_available_tpu_chips_and_device_id()
    assert num_chips == 0
    assert devices._is_installed("jax") and not devices._is_installed("jax_nonesuch.x")


@pytest.mark.slow
def test_commands_of_one_process_use_the_cpu_on_a_host_of_a_slice(trained, monkeypatch):
    monkeypatch.delitem(ENV, "JAX_PLATFORMS")
    for name, value in SLICE.items():
        monkeypatch.setitem(ENV, name, value)
    workdir = f"--workdir={trained / 'run'}"
    result = run("bert_jax.evaluate", workdir)
    assert result.returncode == 0, result.stderr
    assert result.stderr.splitlines()[0] == NOTICE
    result = run("bert_jax.inspect_batch", workdir, "--rows=1")
    assert result.returncode == 0 and NOTICE not in result.stderr


def test_the_tpu_of_a_slice_is_not_opened_by_one_process(monkeypatch):
    for module in (devices, chips):
        monkeypatch.setattr(module, "num_tpu_hosts", lambda: 4)
    monkeypatch.setenv("JAX_PLATFORMS", "tpu")
    error = "^JAX_PLATFORMS=tpu, but this host's TPU .* set JAX_PLATFORMS=cpu to run"
    with pytest.raises(ConfigError, match=error):
        devices.open_local_devices()
    with pytest.raises(ConfigError, match="name the slice, for example"):
        chips.devices("local")


@pytest.mark.parametrize(
    ("environment", "num_hosts"),
    [
        (SLICE, 4),
        (SLICE | {"TPU_WORKER_HOSTNAMES": "localhost"}, 1),
        (SLICE | {"MEGASCALE_NUM_SLICES": "2"}, 8),
        (SLICE | {"TPU_PROCESS_BOUNDS": "1,1,1"}, 1),
        ({"TPU_SKIP_MDS_QUERY": "1"}, 1),
    ],
)
def test_num_tpu_hosts(monkeypatch, environment, num_hosts):
    monkeypatch.setattr(devices.cloud_tpu_cluster, "running_in_cloud_tpu_vm", True)
    for name in ("TPU_WORKER_HOSTNAMES", "MEGASCALE_NUM_SLICES", *devices.BOUNDS):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert devices.num_tpu_hosts() == num_hosts


def test_num_tpu_hosts_without_a_metadata_server(monkeypatch):
    monkeypatch.setattr(devices.cloud_tpu_cluster, "running_in_cloud_tpu_vm", True)
    monkeypatch.delenv("TPU_WORKER_HOSTNAMES", raising=False)
    monkeypatch.delenv("TPU_SKIP_MDS_QUERY", raising=False)
    monkeypatch.setenv("GCE_METADATA_IP", "127.0.0.1:9")
    assert devices.num_tpu_hosts() == 1


# ------------------------------------------------------------ memory of the host

COUNT_FAULTS = """
import ctypes, resource, sys, threading

if sys.argv[1] == "keep":
    from bert_jax.distributed import devices
    devices.keep_freed_memory()
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.free.argtypes = [ctypes.c_void_p]
ctypes.memset.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]


def allocate():
    block = libc.malloc(64 * 2**20)
    ctypes.memset(block, 1, 64 * 2**20)
    libc.free(block)


def count_faults_of_a_second_block():
    allocate()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    allocate()
    print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)


# In a thread, as in XLA: threads have arenas of their own by default.
thread = threading.Thread(target=count_faults_of_a_second_block)
thread.start()
thread.join()
"""


def faults(mode):
    return int(run_code(COUNT_FAULTS, mode).stdout)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc only")
def test_freed_block_is_reused_without_page_faults():
    assert faults("default") > 1000  # when this fails, the setting is not needed
    assert faults("keep") < 100


@pytest.mark.parametrize(
    ("has_accelerator", "computes", "keeps"),
    [(False, True, True), (False, False, False), (True, True, False)],
)
def test_only_commands_that_compute_on_the_cpu_keep_freed_memory(
    monkeypatch, has_accelerator, computes, keeps
):
    calls = []
    monkeypatch.setattr(cli.devices, "has_accelerator", lambda: has_accelerator)
    monkeypatch.setattr(devices, "keep_freed_memory", lambda: calls.append(1))
    monkeypatch.setattr(sys, "argv", ["command"])
    cli.run(lambda: None, "", computes=computes)
    assert bool(calls) == keeps
