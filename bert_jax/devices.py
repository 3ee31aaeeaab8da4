"""Opens the devices of a run: those that were asked for, never a CPU in their place."""

import importlib.util
import os

import jax
from jax._src import hardware_utils  # what JAX itself looks for TPUs with

from bert_jax.config import ConfigError

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
