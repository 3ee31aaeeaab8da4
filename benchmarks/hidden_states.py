"""Compares the hidden states of a trained BERT with those of transformers.

    python -m benchmarks.hidden_states --data=FILE [--model=DIR] [--texts=1000]
        [--length=128]

Prints a row with the largest absolute difference in float32 over all real tokens, of
the embeddings and of every layer. FILE has one text per line; the first --texts lines
that are not blank are used, truncated to --length tokens. The default model is
all-MiniLM-L6-v2, see minilm.py.
"""

import argparse
import tempfile
from collections.abc import Iterator
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from benchmarks import minilm, rows
from bert_jax.inference import options
from bert_jax.loading import model as model_lib
from bert_jax.loading.model import PlacedModel

BATCH = 50


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--texts", type=int, default=1_000)
    parser.add_argument("--length", type=int, default=128)
    args = parser.parse_args()
    lines = args.data.read_text(encoding="utf-8").splitlines()
    texts = [line.strip() for line in lines if line.strip()][: args.texts]
    with tempfile.TemporaryDirectory() as scratch:
        model = args.model or minilm.unpack(Path(scratch))
        found = [
            differences(ours, theirs, inputs["attention_mask"])
            for inputs, ours, theirs in compute(model, texts, args.length)
        ]
    by_state = [float(f"{x:.3g}") for x in np.max(found, axis=0)]
    rows.print_row(
        "hidden_states",
        f"{args.model.name if args.model else 'all-MiniLM-L6-v2'}, {len(texts):,} texts"
        f" of at most {args.length} tokens",
        "largest difference",
        [max(by_state)],
        digits=12,
        by_state=by_state,
    )


def compute(
    model: Path, texts: list[str], length: int
) -> Iterator[tuple[dict[str, np.ndarray], np.ndarray, np.ndarray]]:
    """Yields the inputs [B, T] and both sides' states [E, B, T, D] of each batch.

    E counts the embeddings and the layers. The texts are tokenized by transformers.
    """
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(model)
    reference = transformers.BertModel.from_pretrained(model).eval()
    with jax.set_mesh(options.current_mesh()):
        placed = model_lib.place(model_lib.read_encoder(str(model)))
        for start in range(0, len(texts), BATCH):
            inputs = dict(
                tokenizer(
                    texts[start : start + BATCH],
                    padding="max_length",
                    truncation=True,
                    max_length=length,
                    return_tensors="np",
                )
            )
            yield inputs, our_states(placed, inputs), their_states(reference, inputs)


def our_states(placed: PlacedModel, inputs: dict[str, np.ndarray]) -> np.ndarray:
    B, T = inputs["input_ids"].shape
    batch = {
        "input_ids": inputs["input_ids"],
        "segment_ids": inputs["token_type_ids"],
        "position_ids": np.broadcast_to(np.arange(T), (B, T)),
        "sequence_ids": inputs["attention_mask"],
    }
    batch = {name: jnp.asarray(ids, jnp.int32) for name, ids in batch.items()}
    return np.asarray(_states(placed.graphdef, placed.params, batch))


@jax.jit(static_argnums=0)
def _states(graphdef, params, batch):
    bert = nnx.merge(graphdef, params)
    return jnp.stack(bert.states(batch, dropout_key=None, dtype=jnp.dtype(jnp.float32)))


def their_states(reference, inputs: dict[str, np.ndarray]) -> np.ndarray:
    import torch

    tensors = {name: torch.tensor(ids) for name, ids in inputs.items()}
    with torch.no_grad():
        found = reference(**tensors, output_hidden_states=True).hidden_states
    return torch.stack(found).numpy()


def differences(
    ours_EBTD: np.ndarray, theirs_EBTD: np.ndarray, attention_mask_BT: np.ndarray
) -> np.ndarray:
    """Returns the largest difference of each state over the real tokens, [E]."""
    is_real_BT = attention_mask_BT > 0
    difference = np.abs(ours_EBTD - theirs_EBTD)[:, is_real_BT]
    return difference.max(axis=(1, 2))


if __name__ == "__main__":
    main()
