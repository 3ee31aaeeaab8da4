"""Measures a train step in sequences/s, compared with Hugging Face BERT in PyTorch.

    python -m benchmarks.train_step [--size=base|large] [--batch=8] [--length=128]
        [--packed] [--layers=N] [--dropout=0.1] [--dtype=auto|float32|bfloat16]
        [--repeats=7] [--steps=1] [--peer=beside|alone|none]

Both sides take a whole step on the same batch: forward, backward, clipping by global
norm and AdamW, with dropout and the masked-LM and next-sentence losses. The lower bound
of the work is the FLOPs in the row over the machine's matrix rate. A repeat is --steps
steps: a GPU computes one while the next one is dispatched, as in a run. The peer uses
`torch.compile`, torch's fused AdamW and its scaled dot product attention.

With --packed, a row holds two pairs of half its length: the pairs of Wikipedia of at
most 512 tokens have a mean length of 256. The peer pads each pair to a row of its own,
and sequences/s counts pairs. --peer=alone measures the peer only.
"""

import argparse
import functools
import importlib.util
import statistics
import sys

import jax
import numpy as np

from benchmarks import rows
from bert_jax.config import ExperimentConfig, from_config_dict
from bert_jax.configs import base, large
from bert_jax.data.batches.pipeline import Batch
from bert_jax.distributed import chips, devices, sharding
from bert_jax.distributed import mesh as mesh_lib
from bert_jax.monitoring import throughput
from bert_jax.training import compilation
from bert_jax.training import step as step_lib

PEER = "transformers BertForPreTraining, torch.compile, fused torch AdamW"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_case_arguments(parser)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--steps", type=int, default=1)
    parser.add_argument("--peer", choices=("beside", "alone", "none"), default="beside")
    args = parser.parse_args()
    if args.packed and args.length % 2:
        parser.error(f"--packed needs an even --length, not {args.length}")
    config = make_config(args)
    builders = {}
    if args.peer != "alone":
        builders["ours"] = functools.partial(our_step, num_steps=args.steps)
    if args.peer != "none":
        if not importlib.util.find_spec("torch"):
            sys.exit(
                f"--peer={args.peer} needs torch: pip install -r"
                " requirements-parity.txt, or give --peer=none"
            )
        builders["theirs"] = functools.partial(torch_step, num_steps=args.steps)
    seconds = rows.alternate(builders, (config, make_batch(config)), args.repeats)
    phase = config.phases[0]
    pairs = phase.max_sequences_per_row
    rates = {
        name: [args.batch * pairs * args.steps / s for s in each]
        for name, each in seconds.items()
    }
    flops = throughput.train_flops_per_sequence(config, phase)
    device = jax.devices()[0]
    case = case_of(args, config)
    more = {"device": device.device_kind}
    if args.peer == "alone":
        name = f"{case}, {PEER}"
        rows.print_row("train_step", name, "sequences/s", rates["theirs"], **more)
        return
    chip = chips.chip_of(device.device_kind)  # None for a CPU
    rate = statistics.median(rates["ours"]) / pairs
    rows.print_row(
        "train_step",
        case,
        "sequences/s",
        rates["ours"],
        PEER if "theirs" in rates else None,
        rates.get("theirs"),
        **more,
        gflops_per_sequence=round(flops / pairs / 1e9, 2),
        mfu=round(rate * flops / chip.peak_flops, 3) if chip else None,
    )


def add_case_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments that `make_config` and `case_of` read, except --batch."""
    parser.add_argument("--size", choices=("base", "large"), default="base")
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--packed", action="store_true", help="two pairs in a row")
    parser.add_argument("--layers", type=int, help="fewer layers than the size has")
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument(
        "--dtype", choices=("auto", "float32", "bfloat16"), default="auto"
    )


def case_of(args: argparse.Namespace, config: ExperimentConfig) -> str:
    """Returns the name of a case in rows."""
    dtype = step_lib.compute_dtype(config.compute_dtype)
    case = f"{args.size} {args.batch}x{args.length}{' packed' if args.packed else ''}"
    case += f" {dtype}{f', {args.layers} layers' if args.layers else ''}"
    return case + ("" if args.dropout else ", no dropout")


def make_config(
    args: argparse.Namespace, num_devices: int = 1, pairs: int = 2
) -> ExperimentConfig:
    """Returns the config of a case; a row has that many `pairs` with --packed."""
    config = {"base": base, "large": large}[args.size].get_config()
    phase = config.phases[0 if args.length <= 128 else 1]
    phase.sequence_length = args.length
    phase.global_batch_size = args.batch * num_devices
    phase.max_predictions = min(phase.max_predictions, args.length // 2)
    if args.packed:
        phase.max_sequences_per_row = pairs
    config.phases = (phase,)
    if args.layers:
        config.model.num_hidden_layers = args.layers
    config.model.hidden_dropout_prob = args.dropout
    config.model.attention_probs_dropout_prob = args.dropout
    config.data.num_streams = 1
    config.compute_dtype = args.dtype
    return from_config_dict(config)


def make_batch(config: ExperimentConfig) -> Batch:
    """Returns a batch of full rows of random tokens that use all mask slots.

    The pairs of a row have the same length.
    """
    random = np.random.default_rng(0)
    phase = config.phases[0]
    B, T, P = phase.global_batch_size, phase.sequence_length, phase.max_predictions
    K = phase.max_sequences_per_row
    pair, place = np.divmod(np.arange(T), T // K)
    vocab_size = config.tokenizer.vocab_size
    lowest = min(1000, vocab_size // 2)  # above the special tokens of BERT
    # Not [CLS], whose state the next-sentence head reads.
    words = np.flatnonzero(place)
    positions = [np.sort(random.permutation(words)[:P]) for _ in range(B)]
    batch = {
        "input_ids": random.integers(lowest, vocab_size, (B, T)),
        "segment_ids": np.broadcast_to(place >= T // K // 2, (B, T)),
        "position_ids": np.broadcast_to(place, (B, T)),
        "sequence_ids": np.broadcast_to(pair + 1, (B, T)),
        "masked_lm_positions": np.stack(positions),
        "masked_lm_ids": random.integers(lowest, vocab_size, (B, P)),
        "next_sentence_positions": np.broadcast_to(np.arange(K) * (T // K), (B, K)),
        "next_sentence_labels": random.integers(0, 2, (B, K)),
    }
    batch = {name: array.astype(np.int32) for name, array in batch.items()}
    batch["masked_lm_weights"] = np.ones((B, P), np.float32)
    batch["next_sentence_weights"] = np.ones((B, K), np.float32)
    return batch


def our_step(config: ExperimentConfig, batch: Batch, *, num_steps: int = 1):
    if not devices.has_accelerator():  # as every command does
        devices.keep_freed_memory()
    mesh = mesh_lib.make_mesh(config.mesh)
    jax.set_mesh(mesh)
    graphdef, init = step_lib.init_state(config)
    step = compilation.jit(step_lib.make_train_step(config, graphdef))
    state = init()
    placed = sharding.place_batch(batch, mesh)

    def run() -> None:
        nonlocal state
        for _ in range(num_steps):
            state, _ = step(state, placed)
        jax.block_until_ready(state)

    return run


def torch_step(config: ExperimentConfig, batch: Batch, *, num_steps: int):
    import torch
    import transformers

    device = "cuda" if torch.cuda.is_available() else "cpu"
    dtype = step_lib.compute_dtype(config.compute_dtype)
    model = transformers.BertForPreTraining(
        transformers.BertConfig(
            hidden_size=config.model.hidden_size,
            num_hidden_layers=config.model.num_hidden_layers,
            num_attention_heads=config.model.num_attention_heads,
            intermediate_size=config.model.intermediate_size,
            hidden_act="gelu_new",
            hidden_dropout_prob=config.model.hidden_dropout_prob,
            attention_probs_dropout_prob=config.model.attention_probs_dropout_prob,
        )
    ).to(device)
    model.train()
    adamw = torch.optim.AdamW(
        model.parameters(), lr=1e-4, weight_decay=0.01, fused=True
    )
    model = torch.compile(model)
    labels = np.full_like(batch["input_ids"], -100)
    np.put_along_axis(labels, batch["masked_lm_positions"], batch["masked_lm_ids"], 1)
    num_pairs, length = batch["next_sentence_labels"].size, labels.shape[1]

    def padded(array: np.ndarray, padding: int) -> np.ndarray:
        """Returns a row of the full length for each pair."""
        of_pairs = array.reshape(num_pairs, -1)
        right = length - of_pairs.shape[1]
        return np.pad(of_pairs, ((0, 0), (0, right)), constant_values=padding)

    inputs = {
        "input_ids": padded(batch["input_ids"], 0),
        "token_type_ids": padded(batch["segment_ids"], 0),
        "attention_mask": padded(batch["sequence_ids"] > 0, 0),
        "labels": padded(labels, -100),
        "next_sentence_label": batch["next_sentence_labels"].ravel(),
    }
    inputs = {
        name: torch.tensor(array, dtype=torch.long, device=device)
        for name, array in inputs.items()
    }

    def step() -> None:
        with torch.autocast(device, torch.bfloat16, enabled=dtype.name == "bfloat16"):
            loss = model(**inputs).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        adamw.step()
        adamw.zero_grad()

    def run() -> None:
        for _ in range(num_steps):
            step()
        if device == "cuda":
            torch.cuda.synchronize()

    return run


if __name__ == "__main__":
    main()
