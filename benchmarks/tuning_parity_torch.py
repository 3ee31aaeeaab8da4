"""Fine-tuning as a PyTorch loop over the classes of transformers, from the same state.

The loop has the batches of numpy arrays of bert_jax, but the model, the loss, the
gradient, dropout and AdamW of transformers and PyTorch. The metric is that of bert_jax.

Shapes: N row of the set, B row of the batch, T token.
"""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import torch
import transformers

from bert_jax.finetuning import step as tuning_step
from bert_jax.finetuning.config import RecipeConfig
from bert_jax.finetuning.setup import Setup, Split
from bert_jax.interop import huggingface_write
from bert_jax.model import parameters

CLASSES = {
    "classification": transformers.AutoModelForSequenceClassification,
    "regression": transformers.AutoModelForSequenceClassification,
    "tagging": transformers.AutoModelForTokenClassification,
    "question_answering": transformers.AutoModelForQuestionAnswering,
}
LABELS = ("labels", "start_positions", "end_positions")
# A step number at which the bias correction of AdamW is 1.
LATE = 1e9
EVAL_BATCH = 32


def open_model(setup: Setup, seed: int, *, is_rounded: bool = False) -> Any:
    """Returns the initial state of a run of bert_jax as a model of transformers.

    Args:
      setup, seed: those of the run.
      is_rounded: whether to change all weights by one unit in the last place.
    """
    _, params = jax.jit(setup.build)(tuning_step.run_keys(seed)[0])
    params = parameters.place(params, setup.encoder.arrays)
    with tempfile.TemporaryDirectory() as scratch:
        huggingface_write.write_model(
            Path(scratch),
            params,
            setup.model,
            setup.head,
            setup.encoder.tokenizer,
            setup.config.sequence_length,
        )
        model = CLASSES[setup.head.type.kind].from_pretrained(scratch)
    # transformers excludes [PAD] from the gradient of the embeddings. Only the logits
    # of padding, which question answering has among its classes, depend on it.
    model.get_input_embeddings().padding_idx = None
    if is_rounded:
        with torch.no_grad():
            for x in model.parameters():
                x.mul_(1 + torch.finfo(x.dtype).eps)
    return model


def make_optimizer(
    model: torch.nn.Module, recipe: RecipeConfig, learning_rate: float, num_steps: int
) -> tuple[torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler]:
    """Returns AdamW without bias correction, and linear warmup and decay."""
    tensors = list(model.parameters())
    adam = torch.optim.AdamW(
        [
            {"params": [x for x in tensors if x.ndim > 1]},
            {"params": [x for x in tensors if x.ndim == 1], "weight_decay": 0.0},
        ],
        lr=learning_rate,
        betas=(recipe.beta1, recipe.beta2),
        eps=recipe.epsilon,
        weight_decay=recipe.weight_decay,
    )
    if recipe.optimizer == "adamw_bert":
        for x in tensors:
            adam.state[x] = {
                "step": torch.tensor(LATE),
                "exp_avg": torch.zeros_like(x),
                "exp_avg_sq": torch.zeros_like(x),
            }
    warmup_steps = int(recipe.warmup_fraction * num_steps)

    def factor(step: int) -> float:
        return step / warmup_steps if step < warmup_steps else 1 - step / num_steps

    return adam, torch.optim.lr_scheduler.LambdaLR(adam, factor)


def make_step(
    setup: Setup, model: torch.nn.Module, learning_rate: float
) -> Callable[[dict[str, np.ndarray]], float]:
    """Returns a function that takes a training step on a batch and returns its loss."""
    recipe = setup.config.recipe
    adam, schedule = make_optimizer(model, recipe, learning_rate, setup.num_steps)
    model.train()

    def step(batch: dict[str, np.ndarray]) -> float:
        labels = {
            name: torch.from_numpy(batch[name].astype(np.int64))
            if batch[name].dtype.kind == "i"
            else torch.from_numpy(batch[name])
            for name in LABELS
            if name in batch
        }
        loss = model(**inputs(batch), **labels).loss
        adam.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), recipe.clip_norm)
        adam.step()
        schedule.step()
        return float(loss.detach())

    return step


def inputs(batch: dict[str, np.ndarray]) -> dict[str, torch.Tensor]:
    """Returns the model's inputs [B, T] of a batch of bert_jax."""
    arrays = {
        "input_ids": batch["input_ids"],
        "token_type_ids": batch["segment_ids"],
        "attention_mask": batch["sequence_ids"] > 0,
    }
    return {name: torch.from_numpy(x.astype(np.int64)) for name, x in arrays.items()}


def tune(
    setup: Setup,
    learning_rate: float,
    seed: int,
    batch_of: Callable[[int], dict[str, np.ndarray]],
) -> tuple[list[float], dict[str, float]]:
    """Fine-tunes; returns the losses of all steps and the metrics of the dev set."""
    torch.manual_seed(seed)
    model = open_model(setup, seed)
    step = make_step(setup, model, learning_rate)
    losses = [step(batch_of(i)) for i in range(setup.num_steps)]
    return losses, evaluate(setup, model.eval(), setup.datasets.dev[0])


@torch.no_grad()
def evaluate(setup: Setup, model: Any, split: Split) -> dict[str, float]:
    """Returns the metrics that bert_jax computes from the logits of all rows."""
    features, config = split.features, setup.config
    order_N = np.argsort(features.num_tokens(), kind="stable")
    parts = []
    for rows_B in np.array_split(order_N, -(-len(order_N) // EVAL_BATCH)):
        outputs = model(**inputs(features.batch(rows_B)))
        parts.append(_logits(outputs, config.sequence_length))
    logits = np.concatenate(parts)[np.argsort(order_N)]
    names = setup.datasets.names
    predicted = config.task.predict(split.examples, features, logits, names)
    return config.task.evaluate(split.examples, predicted, names)


def _logits(outputs: Any, length: int) -> np.ndarray:
    """Returns logits [B, C], or [B, length, C] of tokens; padding has zeros."""
    if "start_logits" in outputs:
        logits = torch.stack([outputs.start_logits, outputs.end_logits], dim=2)
    else:
        logits = outputs.logits
    if logits.ndim < 3:
        return logits.numpy()
    missing = length - logits.shape[1]
    return torch.nn.functional.pad(logits, (0, 0, 0, missing)).numpy()
