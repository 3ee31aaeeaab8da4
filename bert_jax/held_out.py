"""What a run's model makes of held-out text, while it trains and at its end."""

import dataclasses
import functools

import jax
from flax import nnx

from bert_jax import evaluate, steps
from bert_jax.config import ExperimentConfig
from bert_jax.data.corpus import corpus as corpus_lib
from bert_jax.distributed import mesh as mesh_lib
from bert_jax.monitoring.writer import HELD_OUT_LOSS


class HeldOut:
    """The fixed held-out batches of each phase, and what guessing scores on them."""

    def __init__(
        self,
        config: ExperimentConfig,
        corpus: corpus_lib.Corpus,
        mesh: jax.sharding.Mesh,
        graphdef: nnx.GraphDef,
    ):
        self._config, self._corpus, self._mesh = config, corpus, mesh
        self._eval_step = jax.jit(steps.make_eval_step(config, graphdef))
        self.exists = bool(corpus.shards["validation"])
        self._batches = functools.cache(
            functools.partial(
                evaluate.eval_batches,
                corpus,
                config,
                part=mesh_lib.host_part(mesh, jax.process_index()),
            )
        )

    def evaluate(self, state: steps.TrainState, phase_index: int) -> dict[str, float]:
        """Returns the held-out metrics and their weighted loss, as eval_NAME."""
        result = evaluate.evaluate(
            self._eval_step,
            state.params,
            self._batches(phase_index),
            self._mesh,
            self._config.accumulation_steps,
        )
        weights = dataclasses.asdict(self._config.loss_weights)
        loss = sum(
            weight * result.get(f"{name}_loss", 0.0) for name, weight in weights.items()
        )
        return {HELD_OUT_LOSS: loss} | {
            f"eval_{name}": value for name, value in result.items()
        }

    @functools.cached_property
    def unigram_entropy(self) -> float | None:
        return evaluate.unigram_entropy(self._corpus) if self.exists else None

    @functools.cached_property
    def next_sentence_majority(self) -> float | None:
        if not self.exists:
            return None
        last_phase = len(self._config.phases) - 1
        return evaluate.next_sentence_majority(
            evaluate.eval_batches(self._corpus, self._config, last_phase)
        )
