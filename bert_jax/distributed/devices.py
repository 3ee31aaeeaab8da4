"""Opens the devices of a command, without JAX's silent fallback to the CPU.

A machine without an accelerator uses its CPU, also if the runtime of one is installed,
for example libtpu for preflight.

The chips of a TPU slice with several hosts can only be opened by all hosts together.
Commands that run as one process use the CPU of such a host, and print a notice.
"""

import ctypes
import glob
import importlib.util
import os
import sys

import jax
from jax._src import hardware_utils  # how JAX itself finds TPUs
from jax._src.clusters import cloud_tpu_cluster  # how jax.distributed finds their hosts

from bert_jax.errors import ConfigError

# JAX's names of platforms -> those of their devices, and the modules that pip installs.
NAMES = {"tpu": "TPU", "cuda": "NVIDIA GPU"}
RUNTIMES = {
    "tpu": ("libtpu",),
    "cuda": ("jax_plugins.xla_cuda13", "jax_plugins.xla_cuda12"),
}

# Device files of TPUs, for those whose PCI ids this JAX does not know.
TPU_FILES = ("/dev/accel[0-9]*", "/dev/vfio/[0-9]*")

# libtpu's compiler recurses into nested fusions and takes 10 KB of stack for each. The
# fusions of remat=full at 512 tokens, compiled for v5e, overflow the default stack of
# its threads and crash it (libtpu 0.0.42).
STACK_FLAG, STACK_BYTES = "--fibers_default_thread_stack_size", 2**20


def set_libtpu_stack() -> None:
    """Sets the stack size of libtpu's threads, before libtpu is loaded."""
    given = os.environ.get("LIBTPU_INIT_ARGS", "")
    if STACK_FLAG not in given:
        os.environ["LIBTPU_INIT_ARGS"] = f"{given} {STACK_FLAG}={STACK_BYTES}".strip()


# If either is "1,1,1", libtpu opens only the chips of this host.
BOUNDS = ("TPU_PROCESS_BOUNDS", "TPU_HOST_BOUNDS")


def num_tpu_hosts() -> int:
    """Returns the number of hosts that must open their TPU chips together, or 1.

    Opens no device. The hosts are read from the environment on GKE, and from the
    metadata server on a Google Compute Engine VM with a TPU.
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
        except OSError:  # the machine has a TPU but no metadata server
            pass
    return 1


def has_accelerator() -> bool:
    """Returns whether JAX may use an accelerator; opens none."""
    asked = _asked_platforms()
    return asked != "cpu" if asked else any(map(_is_present, _installed_platforms()))


def use_cpu() -> None:
    """Restricts JAX to the CPU, for commands that need no accelerator."""
    jax.config.update("jax_platforms", "cpu")


def open_local_devices() -> None:
    """Opens devices for a command that runs as one process, on one host."""
    # Not jax.config: on a machine with a TPU, JAX sets that to "tpu,cpu" itself.
    asked = os.environ.get("JAX_PLATFORMS", "")
    if asked != "cpu" and (num_hosts := num_tpu_hosts()) > 1:
        where = f"this host's TPU can only be opened by all {num_hosts} hosts together"
        if asked:
            raise ConfigError(
                f"JAX_PLATFORMS={asked}, but {where}; set JAX_PLATFORMS=cpu to run this"
                " command on one host"
            )
        print(f"{where}: running on the CPU", file=sys.stderr, flush=True)
        use_cpu()
    open_devices()


def open_devices() -> None:
    """Opens the devices of JAX_PLATFORMS, or of this machine, or raises ConfigError."""
    set_libtpu_stack()
    asked = _asked_platforms()
    installed = [] if asked else _installed_platforms()
    present = [platform for platform in installed if _is_present(platform)]
    if installed and not present:
        absent = " or ".join(NAMES[platform] for platform in installed)
        notice = f"this machine has no {absent}: running on the CPU"
        print(notice, file=sys.stderr, flush=True)
        use_cpu()  # libtpu prints errors if it is loaded without a TPU
    try:
        backend = jax.default_backend()
    except (RuntimeError, AssertionError) as error:  # the latter without CUDA
        given = os.environ.get("JAX_PLATFORMS")
        what = f"JAX_PLATFORMS={given}" if given else "this machine has an accelerator"
        raise _cannot(what, error) from None
    if backend != "cpu" or asked:
        return
    for platform in present:
        try:
            jax.devices(platform)
        except RuntimeError as error:
            raise _cannot(f"this machine has a {NAMES[platform]}", error) from None
    num_chips, _ = hardware_utils.num_available_tpu_chips_and_device_id()
    if num_chips:
        raise ConfigError(
            f"this machine has {num_chips} TPU chips but no libtpu; pip install"
            " 'jax[tpu]' to use them, or set JAX_PLATFORMS=cpu to use the CPU"
        )


def _cannot(what: str, error: BaseException) -> ConfigError:
    reason = str(error).partition(" (set JAX_PLATFORMS")[0].strip()
    return ConfigError(
        f"{what} but its devices cannot be opened ({reason or 'there is none'}); end"
        " the process that uses them if there is one, or set JAX_PLATFORMS=cpu to"
        " use the CPU"
    )


def _asked_platforms() -> str:
    """Returns the platforms of JAX_PLATFORMS, or "tpu,cpu" where JAX has set them."""
    return getattr(jax.config, "jax_platforms") or ""  # noqa: B009, defined at import


def _installed_platforms() -> list[str]:
    return [name for name in RUNTIMES if any(map(_is_installed, RUNTIMES[name]))]


def _is_present(platform: str) -> bool:
    """Returns whether this machine has a device of a platform, by its files."""
    if platform == "cuda":
        return hardware_utils.has_visible_nvidia_gpu()
    num_chips, _ = hardware_utils.num_available_tpu_chips_and_device_id()
    return num_chips > 0 or any(map(glob.glob, TPU_FILES))


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


# mallopt(3) of glibc, by the numbers in malloc.h.
_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_MAX, _M_ARENA_MAX = -1, -2, -4, -8


def keep_freed_memory() -> None:
    """Configures glibc to keep large freed blocks for reuse.

    By default, glibc returns a block over 32 MB to Linux at once. XLA on the CPU
    allocates its temporary memory at every step, so that every step mapped and zeroed
    it again, one page at a time: 9% of the CPU time of a BERT-base step, 25% of a step
    of configs/tiny.py. Peak memory does not change.

    Do not call it in a process that mostly compiles: the threads of the TPU compiler
    then wait for each other's allocations (BERT-large compiles in 294 s instead of
    219 s).

    Call it before threads are started: a thread that has an arena of its own keeps it.
    Does nothing with other C libraries.
    """
    if not sys.platform.startswith("linux"):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:  # musl
        return
    mallopt(_M_ARENA_MAX, 1)  # other arenas cannot hold blocks of every size
    mallopt(_M_MMAP_MAX, 0)
    mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)
    mallopt(_M_TOP_PAD, 64 * 2**20)
