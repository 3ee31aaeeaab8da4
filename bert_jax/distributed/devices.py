"""Opens the devices of a command: those asked for, never a CPU in their place unasked.

A TPU slice of several hosts opens on all of them together. Commands that run as one
process use the CPU of their host there, and say so.
"""

import importlib.util
import os
import sys

import jax
from jax._src import hardware_utils  # how JAX itself finds TPUs
from jax._src.clusters import cloud_tpu_cluster  # how jax.distributed finds their hosts

from bert_jax.errors import ConfigError

# What pip installs for an accelerator, and what JAX calls that.
RUNTIMES = {
    "libtpu": "tpu",
    "jax_plugins.xla_cuda13": "cuda",
    "jax_plugins.xla_cuda12": "cuda",
}

# libtpu's compiler looks into fusions within fusions, 10 KB of stack each. Those of
# remat=full at 512 tokens, for v5e, overflow what its threads have, and it crashes
# (libtpu 0.0.42).
STACK_FLAG, STACK_BYTES = "--fibers_default_thread_stack_size", 2**20


def give_libtpu_stack() -> None:
    """Gives libtpu's threads room, before it is loaded, unless told how much."""
    given = os.environ.get("LIBTPU_INIT_ARGS", "")
    if STACK_FLAG not in given:
        os.environ["LIBTPU_INIT_ARGS"] = f"{given} {STACK_FLAG}={STACK_BYTES}".strip()


# Set to "1,1,1", by either name, they have libtpu open the chips of this host alone.
BOUNDS = ("TPU_PROCESS_BOUNDS", "TPU_HOST_BOUNDS")


def num_tpu_hosts() -> int:
    """Returns the number of hosts whose TPU chips open together, 1 without a TPU.

    Opens no device. GKE gives the hosts in the environment (TPU_WORKER_HOSTNAMES), a
    Google Compute Engine VM with a TPU asks its metadata server.
    """
    if any(os.environ.get(name) == "1,1,1" for name in BOUNDS):
        return 1
    for cluster, value_of in (
        (cloud_tpu_cluster.GkeTpuCluster, os.environ.get),
        (cloud_tpu_cluster.GceTpuCluster, cloud_tpu_cluster.get_tpu_env_value),
    ):
        try:
            if cluster.is_env_present():
                num_slices = int(value_of("MEGASCALE_NUM_SLICES") or 1)
                return num_slices * len(cluster._get_worker_list_in_slice())
        except OSError:  # a machine with a TPU and without a metadata server
            pass
    return 1


def use_cpu() -> None:
    """Restricts JAX to the CPU, for commands that need no accelerator."""
    jax.config.update("jax_platforms", "cpu")


def open_own_devices() -> None:
    """Opens devices for a command that runs as one process, on one host.

    On a host of a TPU slice of several, that is the CPU: the chips would wait for the
    other hosts to open theirs.

    Raises:
      ConfigError: as `open_devices`, and when JAX_PLATFORMS names the TPU of such a
        slice.
    """
    # Not jax.config: on a machine with a TPU, JAX writes "tpu,cpu" into that unasked.
    asked = os.environ.get("JAX_PLATFORMS", "")
    if asked != "cpu" and (num_hosts := num_tpu_hosts()) > 1:
        where = f"this host is one of {num_hosts} whose TPU chips open together"
        if asked:
            raise ConfigError(
                f"JAX_PLATFORMS={asked}, but {where}; set JAX_PLATFORMS=cpu to run this"
                " command on one host"
            )
        print(f"{where}: running on its CPU", file=sys.stderr, flush=True)
        use_cpu()
    open_devices()


def open_devices() -> None:
    """Opens the devices, which takes a while on a TPU.

    Raises:
      ConfigError: when the platform that JAX_PLATFORMS names cannot be opened, because
        it is absent or busy; or when none is named, and there is a TPU, or the runtime
        of an accelerator, but only the CPU could be opened.
    """
    give_libtpu_stack()
    asked = getattr(jax.config, "jax_platforms")  # noqa: B009, made at import
    try:
        backend = jax.default_backend()
    except (RuntimeError, AssertionError) as error:  # the latter where no CUDA is
        raise ConfigError(_cannot(f"JAX_PLATFORMS={asked}", error)) from None
    if backend != "cpu" or asked:
        return
    for runtime, platform in RUNTIMES.items():
        if _is_installed(runtime):
            try:
                jax.devices(platform)
            except RuntimeError as error:
                what = f"{runtime.partition('.')[2] or runtime} is installed"
                raise ConfigError(_cannot(what, error)) from None
    num_chips, _ = hardware_utils.num_available_tpu_chips_and_device_id()
    if num_chips:
        raise ConfigError(
            f"this machine has {num_chips} TPU chips but no libtpu; pip install -e"
            " '.[tpu]' to use them, or set JAX_PLATFORMS=cpu to use the CPU"
        )


def _cannot(what: str, error: BaseException) -> str:
    reason = str(error).partition(" (set JAX_PLATFORMS")[0].strip()
    return (
        f"{what} but its devices cannot be opened ({reason or 'there is none'}); end"
        " the process that uses them if there is one, or set JAX_PLATFORMS=cpu to"
        " use the CPU"
    )


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False
