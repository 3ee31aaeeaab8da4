"""Chooses the keys of a config that depend on the text, the devices and the hours."""

import dataclasses
import math
from typing import Any

from bert_jax.config import ExperimentConfig, PhaseConfig
from bert_jax.distributed import chips
from bert_jax.monitoring import throughput

MOST_EPOCHS, MOST_EPOCHS_CONTINUED = 40, 10  # as BERT (Devlin et al. 2019, A.2); ours
MOST_WITHOUT_DROPOUT = 10  # ours; 37 epochs without it and 25 with it were measured
# As the run of configs/gpu.py, which was better than a smaller model in equal time.
TOKENS_PER_PARAMETER = 7
LEAST_STEPS, LEAST_ROWS = 10_000, 16  # ours
WARMUP_SHARE = 0.06  # of the steps; Portes et al. 2023
EVALUATIONS = 20  # ours
VOCABULARIES = ((20e6, 4_000), (200e6, 8_000), (1e9, 16_000))  # for bytes of text below
# Layers, hidden size, initializer range and learning rate. The last two are those of
# configs/base.py, gpu.py and laptop.py, by hidden size.
SMALLER = (
    (12, 768, 0.02, 1e-4),
    (12, 512, 0.03, 5e-4),
    (8, 512, 0.03, 5e-4),
    (4, 256, 0.06, 1e-3),
)
HEAD_SIZE = 64
TOKENS_PER_SHARD, MOST_STREAMS = 2.5e6, 64  # as in configs/base.py
HELD_OUT_TOKENS, MOST_HELD_OUT = 1e6, 0.02  # ours
CHECKPOINT_BYTES = 12  # of a parameter: weight and two moments

# ---- Measurements

MEASURED_ON = "NVIDIA H200"
# The share of the peak that a step in bfloat16 takes, by hidden size. Narrower models
# were not measured: their share is taken as proportional to the width.
SHARE_OF_PEAK = {512: 0.339, 768: 0.429, 1024: 0.489}
STEPS_SHARE = 0.92  # of the time of the run of configs/gpu.py, with start-up and saves
# Other GPUs have no kernels for attention, which save 59 of the 145 ms that a step of
# BERT-base takes with 128 packed rows of 512 tokens (docs/performance.md).
HAVE_KERNELS = ("NVIDIA H100", "NVIDIA H200")
WITHOUT_KERNELS = 0.6
# FLOPs of the runs of configs/laptop.py and configs/gpu.py, and how far their held-out
# losses were below the unigram entropy, in nats.
LAPTOP, GPU = (3.61e14, 2.77), (6.63e16, 3.76)
GPU_GB = {"a100": 40, "h100": 80, "h200": 141, "l40s": 48, "l40": 48, "l4": 24}
GPU_GB["4090"] = 24
GPU_SHARE = 0.75  # that JAX allocates
STATE_BYTES = 16  # of a parameter: weight, two moments and gradient
# Activations of a layer, per token and hidden unit: 29 in configs/gpu_day.py with 64
# rows at a time, compiled for v5e. Without kernels, also per pair of tokens and head.
ACTIVATION_BYTES, SCORE_BYTES = 30, 4

Row = tuple[str, str, str]  # name, value and reason of a choice


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
        read = [
            x.num_steps * x.global_batch_size * x.sequence_length
            for x in self.config.phases
        ]
        self._shares = [n / sum(read) for n in read]  # of the tokens, by phase

    def choose(self) -> list[Row]:
        """Makes all choices; each depends on those before it."""
        return [
            self._start(),
            self._vocabulary(),
            self._model(),
            self._epochs(),
            self._batch(),
            self._steps(),
            self._corpus(),
            self._hours(),
            self._loss(),
            self._disk(),
        ]

    def _start(self) -> Row:
        if model := self.config.init_from:
            return "start", model, "its sizes, vocabulary and dropout stay"
        reason = "a published BERT of your language needs less: configs/continue.py"
        return "start", "from scratch", reason

    def _vocabulary(self) -> Row:
        tokenizer = self.config.tokenizer
        reason = (
            f"that of {'config.init_from' if self.config.init_from else 'the config'}"
        )
        if not tokenizer.vocab_file and not self.config.init_from:
            sizes = [n for below, n in VOCABULARIES if self.text_bytes < below]
            tokenizer.vocab_size = min([*sizes, tokenizer.vocab_size])
            reason = (
                "4,000 and 8,000 were measured with 12 and 48 MB; 16,000 from 200 MB"
                " and the config's from 1 GB are ours"
            )
        return "vocabulary", f"{tokenizer.vocab_size:,} pieces", reason

    def _model(self) -> Row:
        """Takes the largest model, up to the config's, that reads enough tokens."""
        model, reason = self.config.model, "that of config.init_from"
        if not self.config.init_from:
            for layers, width, initializer_range, rate in SMALLER:
                size = model.num_hidden_layers * model.hidden_size**2
                if self._ratio() < TOKENS_PER_PARAMETER and layers * width**2 < size:
                    model.num_hidden_layers, model.hidden_size = layers, width
                    model.num_attention_heads = width // HEAD_SIZE
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
        millions = num_parameters(self.config) / 1e6
        return "model", f"{size}, {millions:,.0f} M parameters", reason

    def _epochs(self) -> Row:
        model, number = self.config.model, self._tokens_read() / self.tokens
        reason = f"at most {self._most_epochs()}, "
        reason += "which was not tuned" if self.config.init_from else "as BERT"
        if number > MOST_WITHOUT_DROPOUT and not model.hidden_dropout_prob:
            model.hidden_dropout_prob = model.attention_probs_dropout_prob = 0.1
            reason += (
                "; 37 epochs without dropout began to memorize a text, 25 with it did"
                " not"
            )
        dropout = model.hidden_dropout_prob or "none"
        return "epochs", f"~{number:.2g}, dropout {dropout}", reason

    def _batch(self) -> Row:
        """Halves the batch until there are enough steps, and splits it to fit."""
        config, phases, divisor = self.config, self.config.phases, 1
        unit = 2 * math.lcm(LEAST_ROWS, self.num_devices)
        while sum(self._num_steps(self._tokens_read())) < LEAST_STEPS:
            if any(phase.global_batch_size % unit for phase in phases):
                break
            for phase in phases:
                phase.global_batch_size //= 2
            divisor *= 2
        reason = "that of the config"
        if divisor > 1:
            reason += f", divided by {divisor} to take {LEAST_STEPS:,} steps"
        config.accumulation_steps = parts = self._num_parts()
        sizes = [f"{x.global_batch_size:,} x {x.sequence_length}" for x in phases]
        value = f"{', then '.join(sizes)}, rate {config.optimizer.learning_rate:g}"
        if parts > 1:
            reason += f"; in {parts} parts, each of which fits into the memory"
        return "batch", value, reason

    def _steps(self) -> Row:
        config, optimizer = self.config, self.config.optimizer
        expected = self._num_steps(self._tokens_read())
        # The clock ends the last phase, so its steps are a maximum.
        most = self._num_steps(self._most_epochs() * self.tokens)
        for phase, number in zip(
            config.phases, [*expected[:-1], most[-1]], strict=True
        ):
            phase.num_steps = number
        config.budget_hours, optimizer.schedule = self.hours, "wsd"
        optimizer.schedule_by_phase, optimizer.decay_steps = False, 0
        warmup = min(optimizer.warmup_steps, _rounded(WARMUP_SHARE * sum(expected)))
        every = _rounded(sum(expected) / EVALUATIONS)
        optimizer.warmup_steps = warmup
        config.eval.every_steps = config.checkpoint.every_steps = every
        value = f"~{', then '.join(f'{n:,}' for n in expected)}, warmup {warmup:,}"
        reason = "until the epochs or the hours end; the rate decays in the last fifth"
        return "steps", value, reason

    def _corpus(self) -> Row:
        data = self.config.data
        data.num_shards = 2 ** int(math.log2(max(self.tokens / TOKENS_PER_SHARD, 1)))
        batches = [phase.global_batch_size for phase in self.config.phases]
        data.num_streams = math.gcd(data.num_shards, MOST_STREAMS, *batches)
        held_out = float(f"{min(HELD_OUT_TOKENS / self.tokens, MOST_HELD_OUT):.1g}")
        data.validation_fraction = max(data.validation_fraction, held_out)
        value = f"{data.num_shards:,} shards, {data.num_streams} streams,"
        reason = (
            "shards of about 5 MB, as in configs/base.py; the streams read them in"
            " parallel and divide the batch; held out are a million tokens, or 2%"
        )
        return "corpus", f"{value} {data.validation_fraction:.1%} held out", reason

    def _hours(self) -> Row:
        hours = self._tokens_read() / self._tokens_per_hour()
        reason = f"measured on one {MEASURED_ON}, scaled by peak or bandwidth"
        if hours < self.hours:
            reason += "; the text is the limit: more hours need more text"
        return "hours", f"~{float(f'{hours:.2g}'):g} of {self.hours:g}", reason

    def _loss(self) -> Row:
        flops = sum(
            share * self._tokens_read() * flops_per_token(self.config, phase)
            for share, phase in zip(self._shares, self.config.phases, strict=True)
        )
        value, reason = "not known", "no run like this one was measured"
        if not self.config.init_from and (found := gain(flops)):
            span = " to ".join(sorted({f"{nats:.1f}" for nats in found}))
            value = f"~{span} nats below the unigram entropy"
            reason = (
                f"{flops:.0e} FLOPs, extrapolated from configs/laptop.py and gpu.py,"
                f" which had {LAPTOP[1]} and {GPU[1]} with 48 MB"
            )
        reason += f"; stop if 5 of {EVALUATIONS} evaluations in a row are no lower"
        return "held-out loss", value, reason

    def _disk(self) -> Row:
        checkpoint = self.config.checkpoint
        kept = checkpoint.keep + checkpoint.keep_best + 1  # one is being written
        run = kept * CHECKPOINT_BYTES * num_parameters(self.config) / 1e9
        value = f"~{2 * self.tokens / 1e9:.2g} GB corpus, ~{run:.2g} GB run"
        return "disk", value, "besides the text; prepare needs another corpus's size"

    # ---- Quantities

    def _most_epochs(self) -> int:
        return MOST_EPOCHS_CONTINUED if self.config.init_from else MOST_EPOCHS

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
        return min(in_time, self._most_epochs() * self.tokens)

    def _num_parts(self) -> int:
        """Returns the number of microbatches with which each fits into the memory."""
        rows = [x.global_batch_size // self.num_devices for x in self.config.phases]
        most = [rows_that_fit(self.config, x, self.kind) for x in self.config.phases]
        least = max(-(-n // m) for n, m in zip(rows, most, strict=True))
        common = math.gcd(*rows)
        return next((n for n in range(least, common) if common % n == 0), common)

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
    model, vocab_size = config.model, config.tokenizer.vocab_size
    row = throughput.train_flops_per_sequence(model, vocab_size, phase)
    return row / phase.sequence_length


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
    if kind.startswith("NVIDIA") and kind not in HAVE_KERNELS:
        speed *= WITHOUT_KERNELS
    width = config.model.hidden_size
    nearest = max((n for n in SHARE_OF_PEAK if n <= width), default=512)
    share = STEPS_SHARE * SHARE_OF_PEAK[nearest] * min(width / nearest, 1.0)
    return speed * share * measured.peak_flops / flops_per_token(config, phase)


def rows_that_fit(config: ExperimentConfig, phase: PhaseConfig, kind: str) -> int:
    """Estimates how many rows fit into the memory of a device at a time."""
    memory = chips.CHIPS[kind].hbm_gib * chips.GIB
    if kind.startswith("NVIDIA"):
        memory = GPU_SHARE * 1e9 * GPU_GB[kind.split()[-1].lower()]
    free = memory - STATE_BYTES * num_parameters(config)
    return max(int(free / row_bytes(config, phase, kind)), 1)


def row_bytes(config: ExperimentConfig, phase: PhaseConfig, kind: str) -> float:
    """Estimates the memory that a row takes in a step."""
    model, length = config.model, phase.sequence_length
    token = model.hidden_size * ACTIVATION_BYTES
    if kind.startswith("NVIDIA") and kind not in HAVE_KERNELS:
        token += model.num_attention_heads * length * SCORE_BYTES
    return model.num_hidden_layers * token * length


def gain(flops: float) -> tuple[float, float] | None:
    """Estimates how far the held-out loss will be below the unigram entropy, in nats.

    Interpolates two measured runs by the logarithm of their FLOPs. Beyond them, the
    range is from half of that slope to all of it; below them, it is unknown.
    """
    (low, low_gain), (high, high_gain) = LAPTOP, GPU
    if flops < low:
        return None
    decades = math.log10(flops / high)
    line = (high_gain - low_gain) / math.log10(high / low) * decades
    return high_gain + (line / 2 if decades > 0 else line), high_gain + line
