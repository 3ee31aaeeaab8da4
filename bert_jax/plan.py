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
import math
import re
import shlex
import textwrap
from typing import Any

from absl import flags
from ml_collections import ConfigDict

from bert_jax import cli
from bert_jax import config as config_lib
from bert_jax.config import ExperimentConfig, PhaseConfig
from bert_jax.distributed import chips
from bert_jax.distributed import mesh as mesh_lib
from bert_jax.errors import ConfigError
from bert_jax.loading import new_run
from bert_jax.monitoring import throughput
from bert_jax.preflight import check

# ---- Rules; docs/plan.md has their sources.

EPOCHS, EPOCHS_CONTINUED, EPOCHS_WITHOUT_DROPOUT = 40, 10, 10  # at most
TOKENS_PER_PARAMETER = 7  # as the run of configs/gpu.py
WARMUP_SHARE = 0.06  # of the steps
EVALUATIONS = 20
VOCABULARIES = ((20e6, 4_000), (200e6, 8_000), (1e9, 16_000))  # for bytes of text below
# Layers, hidden size, initializer range and learning rate. The last two are those of
# configs/base.py, gpu.py and laptop.py, by hidden size.
SMALLER = (
    (12, 768, 0.02, 1e-4),
    (12, 512, 0.03, 5e-4),
    (8, 512, 0.03, 5e-4),
    (4, 256, 0.06, 1e-3),
)
TOKENS_PER_SHARD, MOST_STREAMS = 2.5e6, 64
HELD_OUT_TOKENS, MOST_HELD_OUT = 1e6, 0.02

# ---- Measurements

MEASURED_ON = "NVIDIA H200"
# The share of the peak that a step in bfloat16 takes, by hidden size. Narrower models
# were not measured: their share is taken as proportional to the width.
SHARE_OF_PEAK = {512: 0.339, 768: 0.429, 1024: 0.489}
STEPS_SHARE = 0.92  # of the time of the run of configs/gpu.py, with start-up and saves
# Other GPUs have no kernels for attention, which save 59 of the 145 ms that a step of
# BERT-base takes with 128 packed rows of 512 tokens (docs/performance.md).
WITHOUT_KERNELS = 0.6
LACK_KERNELS = {*chips.GPUS.values()} - {"NVIDIA H100", "NVIDIA H200"}
# FLOPs of the runs of configs/laptop.py and configs/gpu.py, and how far their held-out
# losses were below the unigram entropy, in nats.
LAPTOP, GPU = (3.61e14, 2.77), (6.63e16, 3.76)
GPU_GB = dict(a100=40, h100=80, h200=141, l40s=48, l40=48, l4=24) | {"4090": 24}
GPU_SHARE = 0.75  # that JAX allocates
STATE_BYTES = 16  # of a parameter: weight, two moments and gradient
# Activations of a layer, per token and hidden unit: 29 in configs/gpu_day.py with 64
# rows at a time, compiled for v5e. Without kernels, also per pair of tokens and head.
ACTIVATION_BYTES, SCORE_BYTES = 30, 4

UNITS = {"": 1, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
CORPUS_FLAG = "--config.data.corpus_dir"
WIDTHS = 14, 31, 53  # of the columns


def main() -> None:
    text, hours, device = cli.require("text_bytes", "hours", "device")
    values: Any = cli.load_values(_CONFIG)
    model = new_run.complete(values, cli.given_keys())  # checks the values, too
    if model.init_from:
        with values.ignore_type():  # a file may have 0 for 0.0
            values.model.update(dataclasses.asdict(model.model))
            values.tokenizer.update(dataclasses.asdict(model.tokenizer))
    before = flat(values)
    if (counted := chips.count(device)) is None:
        raise ConfigError(
            f"--device={device} is not known; use one of {', '.join(chips.GPUS)}, as"
            f" 8*h100 for several, or TPUs: {chips.SLICE_NAMES}"
        )
    text_bytes = parse_bytes(text)
    tokens = text_bytes / _BYTES_PER_TOKEN.value
    plan = Plan(values, text_bytes, tokens, float(hours), *counted)
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
    size = float(match[1]) * UNITS[match[2]] if match else 0.0
    if size < 1e5:
        raise ConfigError(
            f"--text_bytes={text} is not a size of at least 100kB; give bytes, or kB,"
            " MB, GB or TB as in 2GB"
        )
    return size


def flat(values: ConfigDict) -> dict[str, Any]:
    """Returns the values of a config by flag, such as --config.phases[0].num_steps."""
    by_flag = config_lib.flatten(json.loads(values.to_json()), "--config")
    return dict(sorted(by_flag.items()))


def table(rows: list[tuple[str, str, str]]) -> str:
    lines = []
    for row in rows:
        cells = [textwrap.wrap(x, n) for x, n in zip(row, WIDTHS, strict=True)]
        for parts in itertools.zip_longest(*cells, fillvalue=""):
            padded = (x.ljust(n) for x, n in zip(parts, WIDTHS, strict=True))
            lines.append(" ".join(padded).rstrip())
    return "\n".join(lines)


def commands(changes: dict[str, Any], device: str, continues: bool) -> list[str]:
    """Returns a shell script that runs a plan, with the changed flags of the config."""
    given = shlex.split(cli.config_arguments())
    if not any(each.startswith(CORPUS_FLAG) for each in given):
        changes = {CORPUS_FLAG: "corpora/plan"} | changes  # the config's is of its text
    kept = [each for each in given if each.partition("=")[0] not in changes]
    arguments = kept + [f"{key}={value}" for key, value in changes.items()]
    lines = ["plan=(", *(f"  {shlex.quote(each)}" for each in arguments), ")"]
    if chips.parse_slices(device):
        lines.append(f'python -m bert_jax.preflight "${{plan[@]}}" --topology={device}')
    lines.append('python -m bert_jax.prepare "${plan[@]}"')
    if continues:
        lines.append('python -m bert_jax.evaluate "${plan[@]}"')
    return [
        *lines,
        'python -m bert_jax.train "${plan[@]}" --workdir=runs/plan',
        "python -m bert_jax.evaluate --workdir=runs/plan",
    ]


# ------------------------------------------------------------------------------ choices


@dataclasses.dataclass
class Plan:
    """Adapts a config to a text and devices, one choice after the other."""

    config: Any  # a ConfigDict with the attributes of ExperimentConfig, which are set
    text_bytes: float
    tokens: float
    hours: float
    kind: str  # of the devices, a key of chips.CHIPS
    num_devices: int

    def __post_init__(self) -> None:
        phases = self.config.phases
        read = [x.num_steps * x.global_batch_size * x.sequence_length for x in phases]
        self._shares = [n / sum(read) for n in read]  # of the tokens, by phase
        self._is_continued = bool(self.config.init_from)
        self._most_epochs = EPOCHS_CONTINUED if self._is_continued else EPOCHS

    def choose(self) -> list[tuple[str, str, str]]:
        """Returns (name, value, reason) of each choice; it depends on those before."""
        start = self.config.init_from or "from scratch"
        reason = "a published BERT of your language needs less: configs/continue.py"
        if self._is_continued:
            reason = "its sizes, vocabulary and dropout stay"
        return [
            ("start", start, reason),
            ("vocabulary", *self._vocabulary()),
            ("model", *self._model()),
            ("epochs", *self._epochs()),
            ("batch", *self._batch()),
            ("steps", *self._steps()),
            ("corpus", *self._corpus()),
            ("hours", *self._hours()),
            ("held-out loss", *self._loss()),
        ]

    def _vocabulary(self) -> tuple[str, str]:
        tokenizer = self.config.tokenizer
        reason = f"that of {'config.init_from' if self._is_continued else 'the config'}"
        if not tokenizer.vocab_file and not self._is_continued:
            sizes = [n for below, n in VOCABULARIES if self.text_bytes < below]
            tokenizer.vocab_size = min([*sizes, tokenizer.vocab_size])
            reason = "4,000 and 8,000 were measured with 12 and 48 MB; others are ours"
        return f"{tokenizer.vocab_size:,} pieces", reason

    def _model(self) -> tuple[str, str]:
        """Takes the largest model, up to the config's, that reads enough tokens."""
        model, reason = self.config.model, "that of config.init_from"
        if not self._is_continued:
            for layers, width, initializer_range, rate in SMALLER:
                size = model.num_hidden_layers * model.hidden_size**2
                if self._ratio() < TOKENS_PER_PARAMETER and layers * width**2 < size:
                    model.num_hidden_layers, model.hidden_size = layers, width
                    model.num_attention_heads = width // 64
                    model.intermediate_size = 4 * width
                    model.initializer_range = initializer_range
                    self.config.optimizer.learning_rate = rate
            reason = (
                "the largest, up to the config's, that reads"
                f" {TOKENS_PER_PARAMETER} tokens per parameter, as that of"
                f" configs/gpu.py: ~{self._ratio():,.0f}"
            )
            if self._ratio() < TOKENS_PER_PARAMETER:
                reason = "the smallest; such a run is too short for a useful model"
        size = f"{model.num_hidden_layers} layers of {model.hidden_size}"
        return f"{size}, {num_parameters(self.config) / 1e6:,.0f} M parameters", reason

    def _epochs(self) -> tuple[str, str]:
        model, number = self.config.model, self._tokens_read() / self.tokens
        source = "which was not tuned" if self._is_continued else "as BERT"
        reason = f"at most {self._most_epochs}, {source}"
        if number > EPOCHS_WITHOUT_DROPOUT and not model.hidden_dropout_prob:
            model.hidden_dropout_prob = model.attention_probs_dropout_prob = 0.1
            reason += (
                "; 37 epochs without dropout began to memorize a text, 25 with it did"
                " not"
            )
        return f"~{number:.2g}, dropout {model.hidden_dropout_prob or 'none'}", reason

    def _batch(self) -> tuple[str, str]:
        """Splits the config's batch into parts that fit into the memory."""
        config, phases = self.config, self.config.phases
        data, fsdp, _ = mesh_lib.resolve_mesh_shape(config.mesh, self.num_devices)
        # Rows per device. A batch with fewer rows is reported by check_devices.
        rows = [max(x.global_batch_size // (data * fsdp), 1) for x in phases]
        most = [rows_that_fit(config, x, self.kind) for x in phases]
        least = max(-(-n // m) for n, m in zip(rows, most, strict=True))
        common = math.gcd(*rows)
        parts = next((n for n in range(least, common) if common % n == 0), common)
        config.accumulation_steps, reason = parts, "that of the config"
        if parts > 1:
            reason += f"; in {parts} parts, each of which fits into the memory"
        sizes = [f"{x.global_batch_size:,} x {x.sequence_length}" for x in phases]
        rate = config.optimizer.learning_rate
        return f"{', then '.join(sizes)}, rate {rate:g}", reason

    def _steps(self) -> tuple[str, str]:
        config, optimizer = self.config, self.config.optimizer
        expected = self._num_steps(self._tokens_read())
        # The clock ends the last phase, so its steps are a maximum.
        most = self._num_steps(self._most_epochs * self.tokens)
        numbers = *expected[:-1], most[-1]
        for phase, number in zip(config.phases, numbers, strict=True):
            phase.num_steps = number
        config.budget_hours, optimizer.schedule = self.hours, "wsd"
        optimizer.schedule_by_phase, optimizer.decay_steps = False, 0
        need_last_step = (
            (optimizer, "average_steps", 0),
            (config.data, "final_masked_lm_prob", 0.0),
            (config.checkpoint, "keep_steps", ()),
        )
        dropped = [name for section, name, _ in need_last_step if section[name]]
        for section, name, none in need_last_step:
            section[name] = none
        warmup = min(optimizer.warmup_steps, _rounded(WARMUP_SHARE * sum(expected)))
        every = _rounded(sum(expected) / EVALUATIONS)
        optimizer.warmup_steps = warmup
        config.eval.every_steps = config.checkpoint.every_steps = every
        value = f"~{', then '.join(f'{n:,}' for n in expected)}, warmup {warmup:,}"
        reason = "until the epochs or the hours end; the rate decays in the last fifth"
        if dropped:
            reason += f"; without {', '.join(dropped)}, which need a number of steps"
        return value, reason

    def _corpus(self) -> tuple[str, str]:
        data = self.config.data
        data.num_shards = 2 ** int(math.log2(max(self.tokens / TOKENS_PER_SHARD, 1)))
        batches = [phase.global_batch_size for phase in self.config.phases]
        data.num_streams = math.gcd(data.num_shards, MOST_STREAMS, *batches)
        held_out = float(f"{min(HELD_OUT_TOKENS / self.tokens, MOST_HELD_OUT):.1g}")
        data.validation_fraction = max(data.validation_fraction, held_out)
        value = (
            f"{data.num_shards:,} shards, {data.num_streams} streams,"
            f" {data.validation_fraction:.1%} held out"
        )
        reason = "shards of about 5 MB, as in configs/base.py; streams divide the batch"
        return value, reason

    def _hours(self) -> tuple[str, str]:
        hours = self._tokens_read() / self._tokens_per_hour()
        reason = f"measured on one {MEASURED_ON}, scaled by peak or bandwidth"
        if hours < self.hours:
            reason += "; the text is the limit: more hours need more text"
        return f"~{float(f'{hours:.2g}'):g} of {self.hours:g}", reason

    def _loss(self) -> tuple[str, str]:
        flops = sum(
            share * self._tokens_read() * flops_per_token(self.config, phase)
            for share, phase in zip(self._shares, self.config.phases, strict=True)
        )
        value, reason = "not known", "no run like this one was measured"
        if not self._is_continued and flops >= LAPTOP[0]:
            value = f"at most ~{most_gain(flops):.1f} nats below the unigram entropy"
            reason = (
                f"{flops:.0e} FLOPs, extrapolated from configs/laptop.py and gpu.py,"
                f" which had {LAPTOP[1]} and {GPU[1]} with 48 MB"
            )
        reason += f"; stop if 5 of {EVALUATIONS} evaluations in a row are no lower"
        return value, reason

    # ---- Quantities

    def _tokens_per_hour(self) -> float:
        """Estimates the tokens that all devices read in an hour, padding included."""
        seconds = sum(
            share / tokens_per_second(self.config, phase, self.kind)
            for share, phase in zip(self._shares, self.config.phases, strict=True)
        )
        return 3600 * self.num_devices / seconds

    def _tokens_read(self) -> float:
        """Estimates the tokens that the run reads in its hours, at most all epochs."""
        in_time = self.hours * self._tokens_per_hour()
        return min(in_time, self._most_epochs * self.tokens)

    def _ratio(self) -> float:
        return self._tokens_read() / num_parameters(self.config)

    def _num_steps(self, tokens: float) -> list[int]:
        """Returns the steps of each phase, if all phases read this many tokens."""
        return [
            _rounded(share * tokens / (x.global_batch_size * x.sequence_length))
            for share, x in zip(self._shares, self.config.phases, strict=True)
        ]


def _rounded(number: float) -> int:
    return max(int(float(f"{number:.3g}")), 1)


# ---------------------------------------------------------------------------- estimates
# docs/plan.md says how far each estimate is from what was measured.


def num_parameters(config: ExperimentConfig) -> int:
    """Returns the number of weights in matrices and tables."""
    model = config.model
    D, F, L = model.hidden_size, model.intermediate_size, model.num_hidden_layers
    rows = config.tokenizer.vocab_size + model.max_position_embeddings
    return D * rows + L * (4 * D**2 + 2 * D * F) + 2 * D**2


def flops_per_token(config: ExperimentConfig, phase: PhaseConfig) -> float:
    """Returns the FLOPs of a token of a row, forward and backward."""
    return throughput.train_flops_per_sequence(config, phase) / phase.sequence_length


def tokens_per_second(config: ExperimentConfig, phase: PhaseConfig, kind: str) -> float:
    """Estimates how many tokens a run reads per second on each device.

    The rate of an H200 is scaled by the peak or by the bandwidth of the memory of a
    key of chips.CHIPS, whichever is the smaller ratio.
    """
    chip, measured = chips.CHIPS[kind], chips.CHIPS[MEASURED_ON]
    speed = min(
        chip.peak_flops / measured.peak_flops,
        chip.hbm_bytes_per_s / measured.hbm_bytes_per_s,
    )
    if kind in LACK_KERNELS:
        speed *= WITHOUT_KERNELS
    width = config.model.hidden_size
    nearest = max((n for n in SHARE_OF_PEAK if n <= width), default=512)
    share = STEPS_SHARE * SHARE_OF_PEAK[nearest] * min(width / nearest, 1.0)
    return speed * share * measured.peak_flops / flops_per_token(config, phase)


def rows_that_fit(config: ExperimentConfig, phase: PhaseConfig, kind: str) -> int:
    """Estimates how many rows fit into the memory of a device at a time."""
    model, length = config.model, phase.sequence_length
    memory = chips.CHIPS[kind].hbm_gib * chips.GIB
    if kind.startswith("NVIDIA"):
        memory = GPU_SHARE * 1e9 * GPU_GB[kind.split()[-1].lower()]
    free = memory - STATE_BYTES * num_parameters(config)
    token = model.hidden_size * ACTIVATION_BYTES
    if kind in LACK_KERNELS:
        token += model.num_attention_heads * length * SCORE_BYTES
    return max(int(free / (model.num_hidden_layers * token * length)), 1)


def most_gain(flops: float) -> float:
    """Estimates how far the held-out loss is at most below the unigram entropy.

    Returns nats, on the line through two measured runs by the logarithm of FLOPs.
    """
    (low, low_gain), (high, high_gain) = LAPTOP, GPU
    slope = (high_gain - low_gain) / math.log10(high / low)
    return low_gain + slope * math.log10(flops / low)


if __name__ == "__main__":
    _CONFIG = cli.define_config()
    flags.DEFINE_string("text_bytes", None, "size of the text in UTF-8, such as 2GB")
    _BYTES_PER_TOKEN = flags.DEFINE_float(
        "bytes_per_token", 4.7, "4.7 in English, 3 in Chinese", lower_bound=1.0
    )
    flags.DEFINE_float("hours", None, "hours of the run", lower_bound=0.01)
    flags.DEFINE_string("device", None, "such as a100, 8*h100, v5litepod-64, v5e:8x8")
    cli.run(main, __doc__, computes=False)
