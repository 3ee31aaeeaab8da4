"""Measures attention of one layer on a TPU chip, by the compiler's final schedule.

    python -m benchmarks.tpu_attention [--topology=v5e:2x2] [--batch=16] [--length=512]
        [--hidden=768] [--head_dim=64] [--dropout=0.1]

Compiles the forward and backward pass of attention as kernels and as einsums in one
program, and prints the cycles of both: the sum of the larger of an operation's bundles
and its bytes in HBM over the bandwidth. See bert_jax/preflight/schedule.py.
"""

import argparse
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks import rows
from benchmarks.tpu_schedule import print_row, tpu
from bert_jax.config import MeshConfig
from bert_jax.distributed import mesh as mesh_lib
from bert_jax.distributed import sharding
from bert_jax.model import attention, attention_kernel_tpu
from bert_jax.preflight import schedule
from bert_jax.preflight.hlo import CompiledProgram

KERNEL, EINSUMS = "by_kernel", "by_einsums"  # named scopes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--topology", default="v5e:2x2")
    parser.add_argument("--batch", type=int, default=16, help="rows of one device")
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--hidden", type=int, default=768)
    parser.add_argument(
        "--head_dim", type=int, choices=attention_kernel_tpu.HEAD_DIMS, default=64
    )
    parser.add_argument("--dropout", type=float, default=0.1)
    print_row(measure, parser.parse_args())


def measure(args: argparse.Namespace) -> dict[str, object]:
    """Compiles both, and returns the row of the benchmark."""
    with schedule.dumped() as directory:
        devices, chip = tpu(args.topology)
        program = CompiledProgram(compile_both(args, devices[0]))
        found = schedule.operations(program, directory, chip)

    def total(scope: str, scale: str) -> int:
        sides = (each for each in found if scope in each.op_name)
        return round(sum(each.times * (getattr(each, scale) or 0) for each in sides))

    ours, theirs = total(KERNEL, "cycles"), total(EINSUMS, "cycles")
    return {
        "benchmark": "tpu_attention",
        "case": f"{args.topology}, {args.batch}x{args.length}, hidden size"
        f" {args.hidden}, heads of {args.head_dim}, dropout {args.dropout}",
        "value": ours,
        "unit": "cycles of a layer",
        "peer": "einsums",
        "peer_value": theirs,
        "ratio": round(theirs / ours, 3),
        "spread": 0.0,
        "repeats": 1,
        "bundles": total(KERNEL, "bundle_cycles"),
        "peer_bundles": total(EINSUMS, "bundle_cycles"),
        "device": devices[0].device_kind,
        "versions": rows.versions(),
    }


def compile_both(args: argparse.Namespace, device: jax.Device) -> str:
    """Returns the HLO of the forward and backward pass of both implementations."""
    one = MeshConfig(data=1, fsdp=1, tensor=1, shard_optimizer=False)
    mesh = mesh_lib.make_mesh(one, [device])
    num_heads = args.hidden // args.head_dim
    options = attention_kernel_tpu.Options(args.head_dim, args.dropout)

    def by_kernel(q, k, v, ids, seed):
        with jax.named_scope(KERNEL):
            return attention_kernel_tpu.attend(q, k, v, ids, ids, seed, options)

    def by_einsums(q, k, v, ids, seed):
        with jax.named_scope(EINSUMS):
            mask = attention.attention_mask(ids, ids)
            return attention.by_einsums(q, k, v, mask, num_heads, args.dropout, seed)

    @jax.jit
    def both(q, k, v, gradient, ids, seed):
        results = []
        for attend in (by_kernel, by_einsums):
            context, vjp = jax.vjp(lambda *x, f=attend: f(*x, ids, seed), q, k, v)
            results.append((context, vjp(gradient)))
        return results

    def array(shape: tuple[int, ...], dtype: Any, *dims: str) -> jax.ShapeDtypeStruct:
        layout = jax.NamedSharding(mesh, sharding.spec(*dims))
        return jax.ShapeDtypeStruct(shape, dtype, sharding=layout)

    shape = (args.batch, args.length, args.hidden)
    x = array(shape, jnp.bfloat16, "batch", "seq", "heads")
    ids = array(shape[:2], jnp.int32, "batch", "seq")
    with jax.set_mesh(mesh):
        lowered = both.lower(x, x, x, x, ids, array((2,), jnp.uint32, "replicated"))
        return lowered.compile().as_text() or ""


if __name__ == "__main__":
    main()
