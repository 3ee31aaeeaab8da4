"""Plans a run for the text, the hours and the devices that you have.

    python -m bert_jax.plan --config=configs/gpu_day.py --text_bytes=2GB --hours=150
        --device=a100 [--bytes_per_token=4.7] [--config.KEY=VALUE ...]

Prints a table of choices with their reasons, and the commands to run. --config is the
recipe. Its model is the largest that is considered, or the one of config.init_from.
Opens no device and reads no text, but downloads that model if it is on the Hub. Numbers
after ~ are estimates, see docs/plan.md.
"""

import dataclasses
import itertools
import json
import re
import shlex
import textwrap
from typing import Any

from absl import flags
from ml_collections import ConfigDict

from bert_jax import cli
from bert_jax import config as config_lib
from bert_jax.distributed import chips
from bert_jax.errors import ConfigError
from bert_jax.loading import start as start_lib
from bert_jax.plan.choices import Plan, Row
from bert_jax.preflight import check

UNITS = {"": 1, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
CORPUS_FLAG = "--config.data.corpus_dir"
WIDTHS = 14, 31, 53  # of the columns


def main() -> None:
    text, hours, device = cli.require("text_bytes", "hours", "device")
    values: Any = cli.load_values(_CONFIG)
    model = start_lib.complete(values, cli.given_keys())  # checks the values, too
    if model.init_from:
        with values.ignore_type():  # a file may have 0 for 0.0
            values.model.update(dataclasses.asdict(model.model))
            values.tokenizer.update(dataclasses.asdict(model.tokenizer))
    before = flat(values)
    found = chips.count(device)
    if found is None:
        raise ConfigError(
            f"--device={device} is not known; use one of {', '.join(chips.GPUS)}, as"
            f" 8*h100 for several, or TPUs: {chips.SLICE_NAMES}"
        )
    text_bytes = parse_bytes(text)
    plan = Plan(
        values,
        text_bytes,
        text_bytes / _BYTES_PER_TOKEN.value,
        float(hours),
        *found,
    )
    rows = plan.choose()
    num_slices, *_ = chips.parse_slices(device) or (1,)
    config = config_lib.from_config_dict(values)
    check.check_devices(config, plan.num_devices, num_slices)
    print(f"{text} of text, {plan.num_devices} x {plan.kind}, {plan.hours:g} hours\n")
    print(table(rows))
    after = {key: x for key, x in flat(values).items() if x != before[key]}
    print("\n".join(["", *commands(after, device, bool(config.init_from))]))


def parse_bytes(text: str) -> float:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([kKMGT]?)B?", text)
    if not match or not float(match[1]):
        raise ConfigError(
            f"--text_bytes={text} is not a size; give bytes, or kB, MB, GB or TB as in"
            " 2GB"
        )
    return float(match[1]) * UNITS[match[2]]


def table(rows: list[Row]) -> str:
    lines = []
    for row in rows:
        cells = [textwrap.wrap(x, n) for x, n in zip(row, WIDTHS, strict=True)]
        for parts in itertools.zip_longest(*cells, fillvalue=""):
            padded = (x.ljust(n) for x, n in zip(parts, WIDTHS, strict=True))
            lines.append(" ".join(padded).rstrip())
    return "\n".join(lines)


def commands(changes: dict[str, Any], device: str, continues: bool) -> list[str]:
    """Returns the lines of a shell script that runs a plan.

    Args:
      changes: the values of flags that differ from the config of this command.
      continues: whether the run continues a published model.
    """
    given = shlex.split(cli.config_arguments())
    if not any(each.startswith(CORPUS_FLAG) for each in given):
        changes = {CORPUS_FLAG: "corpora/plan"} | changes  # the config's is of its text
    kept = [each for each in given if each.partition("=")[0] not in changes]
    arguments = kept + [f"{key}={value}" for key, value in changes.items()]
    check, evaluate = [], []
    if chips.parse_slices(device):
        check = [f'python -m bert_jax.preflight "${{plan[@]}}" --topology={device}']
    if continues:
        evaluate = ['python -m bert_jax.evaluate "${plan[@]}"']
    return [
        "plan=(",
        *(f"  {shlex.quote(each)}" for each in arguments),
        ")",
        *check,
        'python -m bert_jax.prepare "${plan[@]}"',
        *evaluate,
        'python -m bert_jax.train "${plan[@]}" --workdir=runs/plan',
        "python -m bert_jax.evaluate --workdir=runs/plan",
    ]


def flat(values: ConfigDict) -> dict[str, Any]:
    """Returns the values of a config by flag, such as --config.phases[0].num_steps."""
    found = config_lib.flatten(json.loads(values.to_json()), "--config")
    return dict(sorted(found.items()))


if __name__ == "__main__":
    _CONFIG = cli.define_config()
    flags.DEFINE_string("text_bytes", None, "size of the text in UTF-8, such as 2GB")
    _BYTES_PER_TOKEN = flags.DEFINE_float(
        "bytes_per_token", 4.7, "4.7 in English, 3 in Chinese", lower_bound=1.0
    )
    flags.DEFINE_float("hours", None, "hours of the run", lower_bound=0.01)
    flags.DEFINE_string("device", None, "such as a100, 8*h100, v5litepod-64, v5e:8x8")
    cli.run(main, __doc__, computes=False)
