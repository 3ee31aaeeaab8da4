"""Measures the step of one TPU chip by the compiler's final schedule, without a TPU.

    python -m benchmarks.tpu_schedule [--size=base|large] [--topology=v5e:2x2]
        [--batch=64] [--length=128] [--packed] [--dropout=0.1] [--layers=N]

Compiles the train step and adds up its operations by class, on three scales: libtpu's
own estimate; the bundles of the final schedule, one per cycle; and the larger of the
bundles and the bytes in HBM over the bandwidth. None of them was compared with a TPU.
tpu_bundles.py describes what they omit. In the row, `value` is on the
estimated scale, with operations that have no estimate (Pallas kernels) by their
bundles, and `larger_of` and `classes` on the last one.

The compiler's own flags are read from the environment, and are part of the case:

    LIBTPU_INIT_ARGS=--xla_tpu_scoped_vmem_limit_kib=98304
        python -m benchmarks.tpu_schedule --layers=2
"""

import argparse
import json
import os
import sys
from collections import Counter
from typing import Any

from benchmarks import rows, tpu_bundles, train_step
from bert_jax.distributed import chips
from bert_jax.distributed import mesh as mesh_lib
from bert_jax.errors import ConfigError
from bert_jax.monitoring import throughput
from bert_jax.preflight import check


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", choices=("base", "large"), default="base")
    parser.add_argument("--topology", default="v5e:2x2")
    parser.add_argument("--batch", type=int, default=64, help="rows per device")
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--packed", action="store_true", help="several pairs in a row")
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--layers", type=int, help="fewer layers compile faster")
    parser.set_defaults(dtype="auto")
    try:
        print(json.dumps(measure(parser.parse_args())), flush=True)
    except ConfigError as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_code)


def measure(args: argparse.Namespace) -> dict[str, object]:
    """Compiles the step, and returns the row of the benchmark."""
    case = case_of(args, os.environ.get("LIBTPU_INIT_ARGS", ""))
    with tpu_bundles.dumped() as directory:
        devices, chip = tpu(args.topology)
        config = train_step.make_config(args, len(devices), pairs=8)
        mesh = mesh_lib.make_mesh(config.mesh, devices)
        trial = check.compile_step(config, mesh, 0)
        if trial.program is None:
            raise ConfigError(
                f"--batch={args.batch} does not fit; give a smaller batch"
            )
        found = tpu_bundles.operations(trial.program, directory, chip)
    classes: Counter[str] = Counter()
    for each in found:
        classes[each.kind] += each.times * each.cycles
    flops = args.batch * throughput.train_flops_per_sequence(config, config.phases[0])
    ideal = flops / chip.flops_per_cycle
    step = sum(
        each.times * (each.bundle_cycles if e is None else e)
        for each in found
        if (e := each.estimated_cycles) is not None or each.bundle_cycles is not None
    )
    return {
        "benchmark": "tpu_schedule",
        "case": case,
        "topology": args.topology,
        "layers": config.model.num_hidden_layers,
        "value": step,
        "unit": "cycles",
        "ideal": round(ideal),
        "share_of_peak": round(ideal / step, 3),
        "larger_of": round(classes.total()),
        "classes": {name: round(cycles) for name, cycles in classes.most_common()},
        "memory_bytes": trial.total_bytes,
        "versions": rows.versions(),
    }


def case_of(args: argparse.Namespace, flags: str) -> str:
    """Returns the name of a case from the arguments and the flags of the compiler."""
    case = f"{args.size} {args.batch}x{args.length}{' packed' if args.packed else ''}"
    case += f" dropout {args.dropout}"
    if args.layers:
        case += f" {args.layers} layers"
    return " ".join([case, *flags.split()])


def tpu(topology: str) -> tuple[list[Any], chips.Chip]:
    """Returns the devices of a TPU slice, and their specification."""
    if topology == chips.LOCAL:
        names = ", ".join(chips.EXAMPLES.values())
        raise ConfigError(
            f"--topology={topology} is not a TPU slice; use one of {names}"
        )
    devices = chips.devices(topology)
    chip = chips.chip_of(devices[0].device_kind)
    assert chip is not None, "CHIPS has all TPUs"
    return devices, chip


if __name__ == "__main__":
    main()
