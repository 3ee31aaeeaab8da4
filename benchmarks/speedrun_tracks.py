"""The tracks of benchmarks/speedrun.py, and the rules that their entries keep."""

import dataclasses
import importlib
import math

from bert_jax import config as config_lib
from bert_jax.config import ExperimentConfig
from bert_jax.errors import ConfigError

# The keys of these sections are the reference's, because held-out losses depend on
# them, except for those of FREE.
SECTIONS = ("data", "tokenizer", "eval")
FREE = (
    *("data.corpus_dir", "data.stream", "data.num_streams", "data.masked_lm_prob"),
    *("data.final_masked_lm_prob", "eval.every_steps", "eval.probes"),
)


@dataclasses.dataclass(frozen=True)
class Track:
    """A task in which entries are compared."""

    reference: str  # module of the config whose text and evaluation all entries have
    nats: float  # of the target below the entropy of the held-out token frequencies
    length: int  # tokens in a row of the evaluations that count
    every_steps: int  # between evaluations


TRACKS = {
    "cpu": Track("bert_jax.configs.tiny", nats=1.3, length=64, every_steps=50),
    "gpu": Track("bert_jax.configs.base", nats=4.0, length=128, every_steps=500),
}


def check_rules(config: ExperimentConfig, track: Track) -> None:
    """Raises ConfigError if the config breaks a rule of the track."""
    module = importlib.import_module(track.reference)
    reference = config_lib.from_config_dict(module.get_config())
    for section in SECTIONS:
        expected = dataclasses.asdict(getattr(reference, section))
        for key, value in dataclasses.asdict(getattr(config, section)).items():
            name = f"{section}.{key}"
            if value != expected[key] and name not in FREE:
                raise ConfigError(
                    f"config.{name}={value!r} is fixed in this track; use"
                    f" {expected[key]!r}, as in {track.reference}"
                )
    for key in ("init_from", "branch_from"):
        if value := getattr(config, key):
            raise ConfigError(f"config.{key}={value!r}: use '', to start from scratch")
    masks = math.ceil(track.length * config.eval.masked_lm_prob)
    last = config.phases[-1]
    if last.sequence_length != track.length or last.max_predictions < masks:
        raise ConfigError(
            f"the last phase of config.phases has sequence_length="
            f"{last.sequence_length} and max_predictions={last.max_predictions}; its"
            f" evaluations count with {track.length} and at least {masks}"
        )
