"""The recipes that benchmarks.time_to_loss compares, as configs of bert_jax.train.

    python -m bert_jax.train --config=benchmarks/variants.py:modern --workdir=DIR

All have the model and vocabulary of configs/tiny.py and rows of 128 tokens. Nine
documents of ten draw a target length from 2 to 125 tokens, so that rows of one pair
have much padding, as in a corpus of short texts. "faithful" makes the choices of
configs/base.py, "modern" those of configs/base_modern.py, and each other variant is
"faithful" with one of the modern choices, except for "masked_lm": it is "faithful"
without the next-sentence loss, as the "keras" peer is. The learning rate is constant
after warmup: the loss after a step then does not depend on the length of the run.

"start" trains the weights from which all continue, in rows of 16 and then 64 tokens as
configs/tiny.py: in longer rows alone, the loss stays long at the unigram entropy.
"""

from collections.abc import Callable

import ml_collections

from bert_jax.configs import tiny
from bert_jax.errors import ConfigError

LENGTH = 128


def get_config(variant: str = "faithful") -> ml_collections.ConfigDict:
    if variant not in VARIANTS:
        known = ", ".join(VARIANTS)
        raise ConfigError(f"variant {variant!r} is not one of {known}")
    config = tiny.get_config()
    config.model.max_position_embeddings = LENGTH
    config.optimizer.update(
        name="adamw_bert", beta1=0.9, weight_decay=0.01, learning_rate=2e-3
    )
    for change in VARIANTS[variant]:
        change(config)
    return config


def follow_base(config: ml_collections.ConfigDict) -> None:
    """Sets the choices of configs/base.py; its beta2 needs more steps than these."""
    config.data.short_seq_prob = 0.9
    config.data.masked_lm_prob = 0.15
    config.model.hidden_dropout_prob = 0.1
    config.model.attention_probs_dropout_prob = 0.1
    config.phases = config.phases[-1:]
    (phase,) = config.phases
    phase.num_steps = config.eval.every_steps = 1000
    phase.sequence_length = LENGTH
    phase.global_batch_size = 14
    phase.max_predictions = 20
    config.optimizer.learning_rate = 1e-3
    config.optimizer.schedule = "constant"
    config.optimizer.schedule_by_phase = False
    config.optimizer.warmup_steps = 10  # 1% of the steps


def leave_out_next_sentence(config: ml_collections.ConfigDict) -> None:
    config.loss_weights.next_sentence = 0.0  # the pairs and batches stay the same


# ---- The choices of configs/base_modern.py


def pack(config: ml_collections.ConfigDict) -> None:
    (phase,) = config.phases
    phase.max_sequences_per_row = 4
    phase.max_predictions += 2  # the number of masks is rounded for each pair
    # A packed row has 1.54 pairs on average: 9 rows have as many as 14 unpacked ones.
    phase.global_batch_size = 9


def mask_more(config: ml_collections.ConfigDict) -> None:
    config.data.masked_lm_prob = 0.3
    config.phases[0].max_predictions *= 2


def drop_nothing(config: ml_collections.ConfigDict) -> None:
    config.model.hidden_dropout_prob = 0.0
    config.model.attention_probs_dropout_prob = 0.0


def change_optimizer(config: ml_collections.ConfigDict) -> None:
    config.optimizer.name = "adamw"
    config.optimizer.beta2 = 0.98
    config.optimizer.warmup_steps = 60  # 6% of the steps


Changes = tuple[Callable[[ml_collections.ConfigDict], None], ...]
VARIANTS: dict[str, Changes] = {
    "start": (),
    "faithful": (follow_base,),
    "masked_lm": (follow_base, leave_out_next_sentence),
    "packed": (follow_base, pack),
    "more_masks": (follow_base, mask_more),
    "no_dropout": (follow_base, drop_nothing),
    "optimizer": (follow_base, change_optimizer),
    "modern": (follow_base, pack, mask_more, drop_nothing, change_optimizer),
}
