"""What a run will take, before it is paid for: no TPU is needed, none is opened.

    python -m bert_jax.preflight --config=configs/X.py --topology=v5e:16x16 [--json]
        [--price_per_chip_hour=1.2] [--workdir=DIR] [--nosearch]
        [--config.KEY=VALUE ...]
    python -m bert_jax.preflight --config=configs/X.py --devices=N
        [--slices=1] [--config.KEY=VALUE ...]

Compiles the step that `train` would run, for each phase, with the TPU's own compiler,
and reports memory, collectives and FLOPs, which are facts of the compiled program, and
estimated time, MFU, hours and cost. A batch of which a few layers tell that it is far
too large is not compiled. Searches the largest batch, and what remat buys; --nosearch
leaves that out. The exit code is 0 whether it fits or not: see "fits". Phases are
compiled side by side where this machine's cores and memory allow it.

With --devices it compiles nothing and wants no libtpu: in seconds it tells whether the
config, its arguments and its batches go onto N devices of any kind, all --slices of
them together.
"""

import json

from absl import flags

from bert_jax import cli
from bert_jax.distributed import chips
from bert_jax.errors import ConfigError
from bert_jax.preflight import check, checks
from bert_jax.preflight import report as report_lib


def main() -> None:
    config = cli.load_config(_CONFIG)
    if _DEVICES.value is not None:
        if _TOPOLOGY.value is not None:
            raise ConfigError("--devices and --topology exclude each other; give one")
        print(checks.check_devices(config, _DEVICES.value, _SLICES.value))
        return
    if _SLICES.value > 1:
        raise ConfigError(
            f"--slices={_SLICES.value} goes with --devices; a --topology names them"
            f" itself: {_SLICES.value}*v5e:16x16"
        )
    if _TOPOLOGY.value is None:
        raise ConfigError(
            "--topology is missing; give it one of"
            f" {', '.join(chips.EXAMPLES.values())}, or {chips.LOCAL}"
        )
    report = {"arguments": cli.config_arguments()} | check.preflight(
        config, _TOPOLOGY.value, _WORKDIR.value, _PRICE.value, _SEARCH.value
    )
    print(json.dumps(report) if _JSON.value else report_lib.table(report))


if __name__ == "__main__":
    _CONFIG = cli.define_config()
    _TOPOLOGY = flags.DEFINE_string(
        "topology", None, "TPU slices, for example v5e:16x16 or 2*v5e:16x16, or local"
    )
    _DEVICES = flags.DEFINE_integer(
        "devices", None, "compile nothing: does it go onto so many?", lower_bound=1
    )
    _SLICES = flags.DEFINE_integer(
        "slices", 1, "TPU slices that --devices are in", lower_bound=1
    )
    _JSON = flags.DEFINE_bool("json", False, "print one JSON object, not a table")
    _PRICE = flags.DEFINE_float(
        "price_per_chip_hour", None, "what a chip costs an hour", lower_bound=0.0
    )
    _WORKDIR = flags.DEFINE_string("workdir", None, "to be checked for writing")
    _SEARCH = flags.DEFINE_bool(
        "search", True, "find the largest batch and what remat buys"
    )
    cli.run_and_leave(main, __doc__, computes=False)
