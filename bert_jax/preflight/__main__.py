"""Estimates memory, step time and cost of a run by ahead-of-time compilation.

    python -m bert_jax.preflight --config=configs/X.py --topology=v5e:16x16 [--json]
        [--price_per_chip_hour=1.2] [--nosearch] [--config.KEY=VALUE ...]
    python -m bert_jax.preflight --config=configs/X.py --devices=N
        [--slices=1] [--config.KEY=VALUE ...]

Needs no TPU and opens none. Compiles the train step of each phase with the TPU's
compiler. Memory and collectives are read from the compiled program; step time, MFU,
hours and cost are estimates. Also compiles the largest batch that fits and each kind of
remat; --nosearch skips both if the batch fits. The exit code is 0 whether the run fits
or not: see "fits" in the report. A slice may also be given by Google's name: v4-8 is
v4:2x2x1, v5litepod-64 is v5e:8x8.

With --devices, compiles nothing and needs no libtpu: checks within seconds whether the
config can be divided over N devices of any kind, counted over all --slices.
"""

import json

from absl import flags

from bert_jax import cli
from bert_jax.distributed import chips
from bert_jax.errors import ConfigError
from bert_jax.loading import start as start_lib
from bert_jax.preflight import check, checks
from bert_jax.preflight import report as report_lib


def main() -> None:
    config = start_lib.complete(cli.load_values(_CONFIG), cli.given_keys())
    if _DEVICES.value is not None:
        if _TOPOLOGY.value is not None:
            raise ConfigError(
                "--devices and --topology are mutually exclusive; give one"
            )
        print(checks.check_devices(config, _DEVICES.value, _SLICES.value))
        return
    if _SLICES.value > 1:
        raise ConfigError(
            "--slices requires --devices; see also --topology=2*v5e:16x16"
        )
    if _TOPOLOGY.value is None:
        raise ConfigError(
            f"--topology is missing; give {chips.LOCAL}, or a slice such as"
            f" {', '.join(chips.EXAMPLES.values())}, or v5litepod-64"
        )
    report = {"arguments": cli.config_arguments()} | check.preflight(
        config, _TOPOLOGY.value, _PRICE.value, _SEARCH.value
    )
    print(json.dumps(report) if _JSON.value else report_lib.table(report))


if __name__ == "__main__":
    _CONFIG = cli.define_config()
    _TOPOLOGY = flags.DEFINE_string(
        "topology",
        None,
        "TPU slices, such as v5e:16x16, v5litepod-64 or 2*v5e:16x16, or local",
    )
    _DEVICES = flags.DEFINE_integer(
        "devices", None, "number of devices: check only the division", lower_bound=1
    )
    _SLICES = flags.DEFINE_integer(
        "slices", 1, "number of TPU slices that contain --devices", lower_bound=1
    )
    _JSON = flags.DEFINE_bool("json", False, "print one JSON object, not a table")
    _PRICE = flags.DEFINE_float(
        "price_per_chip_hour", None, "price of one chip for one hour", lower_bound=0.0
    )
    _SEARCH = flags.DEFINE_bool(
        "search", True, "find the largest batch and compare the kinds of remat"
    )
    cli.run_and_leave(main, __doc__, computes=False)
