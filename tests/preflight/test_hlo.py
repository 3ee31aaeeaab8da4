"""Parsing of compiled programs, one written by hand and several real ones."""

import collections
import functools

import jax
import jax.experimental.topologies
import jax.numpy as jnp
import pytest

from bert_jax.distributed import chips
from bert_jax.distributed import mesh as mesh_lib
from bert_jax.preflight import check, hlo
from bert_jax.preflight.hlo import CompiledProgram
from tests.conftest import make_config, slow, use_mesh

MIB = 2**20

BY_HAND = """
HloModule jit_step, is_scheduled=true

%product (a: bf16[8,8], b: bf16[8,8]) -> bf16[8,8] {
  %a = bf16[8,8]{1,0:T(8,128)(2,1)} parameter(0)
  %b = bf16[8,8]{1,0:T(8,128)(2,1)} parameter(1)
  ROOT %convolution.1 = bf16[8,8]{1,0} convolution(%a, %b), dim_labels=bf_io->bf, \
metadata={op_name="jit(step)/layer/SCOPE/dot_general"}, \
backend_config={"estimated_cycles":"999"}
}

%body (state: (s32[], bf16[8,8])) -> (s32[], bf16[8,8]) {
  %state = (s32[]{:T(128)}, bf16[8,8]{1,0}) parameter(0)
  %i = s32[]{:T(128)} get-tuple-element(%state), index=0
  %x = bf16[8,8]{1,0} get-tuple-element(%state), index=1
  %fusion.1 = bf16[8,8]{1,0} fusion(%x, %x), kind=kOutput, calls=%product, \
metadata={op_name="jit(step)/layer/add"}, backend_config={"estimated_cycles":"100"}
  %select.1 = bf16[8,8]{1,0} fusion(%fusion.1), kind=kLoop, calls=%other, \
metadata={op_name="jit(step)/layer/attention/dropout/select_n"}, \
backend_config={"estimated_cycles":"7"}
  %all-reduce.1 = bf16[8,8]{1,0} all-reduce(%select.1), \
replica_groups=mesh['axis_0'=4,'axis_1'=2] {'axis_0'}, to_apply=%sum, \
metadata={op_name="jit(step)/layer/reduce_sum"}
  ROOT %tuple.1 = (s32[]{:T(128)}, bf16[8,8]{1,0}) tuple(%i, %all-reduce.1)
}

%condition (state.1: (s32[], bf16[8,8])) -> pred[] {
  %state.1 = (s32[]{:T(128)}, bf16[8,8]{1,0}) parameter(0)
  %limit = s32[]{:T(128)} constant(LIMIT)
  %i.1 = s32[]{:T(128)} get-tuple-element(%state.1), index=0
  ROOT %lt = pred[]{:T(512)} compare(%i.1, %limit), direction=LT
}

ENTRY %main (p: bf16[8,8]) -> bf16[8,8] {
  %p = bf16[8,8]{1,0} parameter(0)
  %first = s32[]{:T(128)} constant(0)
  %start = (s32[]{:T(128)}, bf16[8,8]{1,0}) tuple(%first, %p)
  %while.1 = (s32[]{:T(128)}, bf16[8,8]{1,0}) while(%start), condition=%condition, \
body=%bodyKNOWN
  %y = bf16[8,8]{1,0} get-tuple-element(%while.1), index=1
  %copy.1 = bf16[8,8]{0,1} copy(%y), backend_config={"estimated_cycles":"30"}
  %sorted = f32[8]{0} sort(%y), dimensions={0}, \
backend_config={"estimated_cycles":"18446744073709551615"}
  %gathered = (f32[4,8]{1,0}, f32[16,8]{1,0}) all-gather-start(%sorted), \
replica_groups=[2,4]<=[8]
  %shared = f32[4,8]{1,0} reduce-scatter(%sorted), replica_groups={{0,1},{2,3}}
  ROOT %update = bf16[8,8]{1,0} fusion(%copy.1), kind=kLoop, calls=%other, \
metadata={op_name="jit(step)/optimizer/mul"}, backend_config={"estimated_cycles":"5"}
}
"""


def by_hand(*, limit=3, known="", scope="mlp"):
    text = BY_HAND.replace("LIMIT", str(limit))
    return CompiledProgram(text.replace("KNOWN", known).replace("SCOPE", scope), 8)


def test_a_loops_body_counts_once_per_iteration():
    assert by_hand().cycles == {
        "matmul": 300,  # the fusion's cycles, without those of the product inside it
        "attention": 0,
        "elementwise": 0,
        "dropout": 21,
        "head": 0,
        "embeddings": 0,
        "optimizer": 5,
        "copies": 30,
    }


@pytest.mark.parametrize(
    ("loop", "trips"),
    [
        ({"limit": 5}, 5),
        ({"known": ', backend_config={"known_trip_count":{"n":"6"}}'}, 6),
    ],
)
def test_iterations_are_read_from_the_loop_or_its_condition(loop, trips):
    assert by_hand(**loop).cycles["matmul"] == 100 * trips


def test_products_within_attention_count_as_attention():
    cycles = by_hand(scope="attention").cycles
    assert cycles["attention"] == 300 and cycles["matmul"] == 0


def test_operations_without_an_estimate_are_listed_separately():
    assert [(i.opcode, times) for i, times in by_hand().unestimated] == [("sort", 1)]


def test_collectives_with_bytes_groups_and_times():
    found = [
        (c.kind, c.bytes, c.devices, c.times_a_step) for c in by_hand().collectives
    ]
    assert found == [
        ("all-reduce", 128, 4, 3),
        ("all-gather", 512, 4, 1),
        ("reduce-scatter", 256, 2, 1),
    ]


def test_a_collective_takes_its_bytes_over_the_links_rate():
    reduce, gather, _ = by_hand().collectives
    # Each of 4 devices sends 3/4 of the array and then 3/4 of the sums.
    assert reduce.seconds(128.0) == pytest.approx(3 * 2 * 0.75)
    assert gather.seconds(512.0) == pytest.approx(0.75)


@pytest.mark.parametrize(
    ("message", "sizes"),
    [
        (
            "RESOURCE_EXHAUSTED: Ran out of memory on HBM, the total memory required"
            " for HLO temporaries (28.50G) exceeds available HBM (15.75G).",
            (28.5 * 1024 * MIB, 15.75 * 1024 * MIB),
        ),
        (
            "XLA:TPU compile permanent error. Ran out of memory in memory space hbm."
            " Used 981.50M of 512.00M hbm. Exceeded hbm capacity by 469.50M.",
            (981.5 * MIB, 512 * MIB),
        ),
    ],
)
def test_needed_and_available_bytes_are_read_from_an_error(message, sizes):
    assert hlo.refused_bytes(message) == sizes
    assert hlo.refused_bytes("INTERNAL: something else") is None


def test_memory_and_a_real_loop():
    x = jnp.ones((64, 64))

    def step(x, y):
        return jax.lax.fori_loop(0, 5, lambda _, x: x @ y, x)

    compiled = jax.jit(step, donate_argnums=0).lower(x, x).compile()
    found = hlo.memory(compiled)
    assert found["arguments"] == 2 * x.nbytes
    assert found["outputs"] == found["aliased"] == x.nbytes
    rest = found["temporaries"] + found["code"]
    assert found["total"] == 2 * x.nbytes + rest
    program = CompiledProgram(compiled.as_text())
    assert 5 in {times for _, times in program.executed()}
    assert not any(program.cycles.values())  # the CPU's compiler estimates none


def test_device_bytes_are_those_of_one_device():
    mesh = use_mesh(4, 2, 1)
    split = jax.sharding.NamedSharding(mesh, jax.P("data", None))
    tree = {
        "a": jax.ShapeDtypeStruct((8, 3), jnp.float32, sharding=split),
        "b": jax.device_put(jnp.zeros(5, jnp.bfloat16)),
    }
    assert hlo.device_bytes(tree) == 2 * 3 * 4 + 5 * 2


def test_an_all_reduce_fused_with_a_slice_is_a_reduce_scatter():
    """In libtpu's output, it has the bytes of the whole array and the fusion's name."""
    program = CompiledProgram(
        """
%all-reduce-scatter (input: f32[8,4]) -> f32[2,4] {
  %input = f32[8,4]{1,0} parameter(0)
  %all-reduce.2 = f32[8,4]{1,0} all-reduce(%input), \
replica_groups={{0,1,2,3}}, to_apply=%add
  ROOT %part = f32[2,4]{1,0} dynamic-slice(%all-reduce.2, %a, %b)
}

ENTRY %main (p: f32[8,4]) -> f32[2,4] {
  %p = f32[8,4]{1,0} parameter(0)
  ROOT %fusion = f32[2,4]{1,0} fusion(%p), kind=kCustom, calls=%all-reduce-scatter, \
metadata={op_name="jit(step)/optimizer/dot_general"}
}
""",
        8,
    )
    assert program.collectives == [
        hlo.Collective("reduce-scatter", 8 * 4 * 4, 4, 1, ("f32",))
    ]
    assert not program.unestimated  # its time is that of a collective


def test_an_all_reduce_on_another_core_is_counted():
    """libtpu starts gradient sums this way on TPU7x; the start op has no size."""
    program = CompiledProgram(
        """
%called (input: bf16[8,4]) -> bf16[8,4] {
  %input = bf16[8,4]{1,0} parameter(0)
  ROOT %all-reduce.2 = bf16[8,4]{1,0} all-reduce(%input), \
replica_groups=mesh['axis_0'=8,'axis_1'=1] {'axis_0','axis_1'}, to_apply=%add
}

ENTRY %main (p: bf16[8,4]) -> bf16[8,4] {
  %p = bf16[8,4]{1,0} parameter(0)
  %begun = ((bf16[8,4]{1,0}, token[]), bf16[8,4]{1,0}) call-start(%p, %ready), \
async_execution_thread="sparsecore", to_apply=%called
  ROOT %done = bf16[8,4]{1,0} call-done(%begun)
}
""",
        8,
    )
    assert program.collectives == [
        hlo.Collective("all-reduce", 8 * 4 * 2, 8, 1, ("bf16",))
    ]


MESHES = [{"fsdp": 4, "data": 1}, {"shard_optimizer": True}]


@functools.cache
def tpu_trial(topology="v5e:2x2", **changes):
    """Compiles a step, once for all tests; the sequences of words are short."""
    config = make_config(
        model__num_hidden_layers=1,
        model__hidden_size=128,
        model__intermediate_size=256,
        model__hidden_dropout_prob=0.1,
        model__attention_probs_dropout_prob=0.1,
        tokenizer__vocab_size=1000,
        phase={"global_batch_size": 64},
        **changes,
    )
    mesh = mesh_lib.make_mesh(config.mesh, chips.devices(topology))
    return check.compile_step(config, mesh, 0)


def tpu_program(topology="v5e:2x2", **changes):
    """Returns a step compiled for four chips by default, and the parameter count."""
    trial = tpu_trial(topology, **changes)
    return trial.program, trial.facts["arguments"]["parameters"] // 4


@pytest.mark.libtpu
@pytest.mark.parametrize(
    ("topology", "num_devices", "most"), [("v5e:2x2", 4, 2), slow("tpu7x:2x2x1", 8, 5)]
)
def test_the_tpus_compiler_reduces_each_gradient_once_and_nothing_else(
    topology, num_devices, most
):
    """There is one sum of the metrics and few of the gradients; TPU7x splits some."""
    program, num_parameters = tpu_program(topology)
    assert {c.kind for c in program.collectives} == {"all-reduce"}
    assert {(c.devices, c.times_a_step) for c in program.collectives} == {
        (num_devices, 1)
    }
    gradients = [c for c in program.collectives if c.bytes > 1024]
    assert len(gradients) <= most and len(program.collectives) <= most + 1
    # Every parameter once, in float32; sums of activations would exceed this.
    num_bytes = sum(c.bytes for c in gradients)
    assert 4 * num_parameters <= num_bytes <= 4 * num_parameters + 4096


@pytest.mark.libtpu
@pytest.mark.parametrize(
    ("dtype", "mesh"),
    [
        *(("float32", mesh) for mesh in MESHES),
        ("bfloat16", {}),
        ("bfloat16", {"fsdp": 4, "data": 1}),
    ],
)
def test_gradients_of_kernels_are_summed_over_devices_in_the_configs_dtype(dtype, mesh):
    """Gradients of embeddings and vectors are always summed in float32."""
    changes = {f"mesh__{name}": value for name, value in mesh.items()}
    if dtype != "float32":  # the default, whose programs other tests use
        changes["gradient_reduction_dtype"] = dtype
    program, num_parameters = tpu_program(**changes)
    num_parameters *= mesh.get("fsdp", 1)
    num_bytes = collections.Counter()
    for collective in program.collectives:
        if collective.kind in ("all-reduce", "reduce-scatter"):
            assert len(collective.dtypes) == 1
            num_bytes[collective.dtypes[0]] += collective.bytes
    num_kernel = 6 * 128 * 128 + 2 * 128 * 256  # all but the head of two classes
    if dtype == "float32":
        assert set(num_bytes) == {"f32"}
        assert num_bytes["f32"] > 4 * 0.9 * num_parameters
    else:
        # The head of two classes is not sharded.
        assert 2 * num_kernel <= num_bytes["bf16"] <= 2 * 1.1 * num_kernel


@pytest.mark.libtpu
def test_parameters_and_moments_are_updated_without_layout_copies():
    """A step took an eighth longer when each was copied to another layout and back."""
    program, _ = tpu_program()
    assert all(program.cycles.values())
    assert program.cycles["copies"] < 0.02 * sum(program.cycles.values())


@pytest.mark.libtpu
@pytest.mark.parametrize("mesh", MESHES)
def test_gradients_of_sharded_parameters_are_scattered_and_parameters_gathered(mesh):
    """libtpu fuses the scatter into an all-reduce, which hlo.py reports by its kind."""
    program, num_parameters = tpu_program(
        **{f"mesh__{name}": value for name, value in mesh.items()}
    )
    by_kind = collections.Counter()
    for collective in program.collectives:
        by_kind[collective.kind] += collective.bytes * collective.times_a_step
    of_all = num_parameters * mesh.get("fsdp", 1)  # approximate: vectors are unsharded
    # In float32; with fsdp, the two parts of the word embeddings' gradient are summed.
    assert 3.5 * of_all < by_kind["reduce-scatter"] < 5.5 * of_all
    assert by_kind["all-gather"] > 2 * of_all
    assert by_kind["all-reduce"] < of_all / 4  # metrics and gradients of vectors
    assert not [i for i, _ in program.unestimated if "reduce-scatter" in i.text]


@pytest.mark.libtpu
def test_accumulation_reduces_once_per_step_except_the_word_embeddings():
    """Their gradient has two parts, a lookup's and the head's.

    XLA moves a sum over devices out of a loop if its result is added directly to the
    accumulator, which is not the case for a sum of two parts.
    """
    program, num_parameters = tpu_program(accumulation_steps=4)
    assert {c.kind for c in program.collectives} == {"all-reduce"}
    inside = [c for c in program.collectives if c.times_a_step > 1]
    assert [(c.bytes, c.times_a_step) for c in inside] == [(1000 * 128 * 4, 4)]
    once = sum(c.bytes for c in program.collectives if c.times_a_step == 1)
    assert 2 * num_parameters < once <= 4 * num_parameters + 4096
    assert any(times == 4 for _, times in program.executed())


@pytest.mark.libtpu
@pytest.mark.slow
def test_slices_exchange_a_share_of_the_gradients_and_nothing_else():
    """Each chip sends its quarter of its slice's sums, and receives another slice's."""
    program, num_parameters = tpu_program("2*v5e:2x2")
    sent = [c for c in program.collectives if c.kind == "send"]
    assert {collective.times_a_step for collective in sent} == {1}
    # In float32; the word embeddings' gradient has two parts, as above.
    num_bytes = sum(collective.bytes for collective in sent)
    a_share = num_parameters / 4
    assert 4 * a_share < num_bytes < 4 * (a_share + 1000 * 128 / 4) + 2**15
    groups = {
        collective.devices
        for collective in program.collectives
        if collective.kind not in ("send", "collective-permute")
    }
    assert groups == {4}  # all other collectives stay within a slice


@pytest.mark.libtpu
def test_sharding_the_optimizer_divides_its_memory_by_the_devices():
    plain, split = (
        tpu_trial(**on).facts for on in ({}, {"mesh__shard_optimizer": True})
    )
    before, after = (each["arguments"]["optimizer_moments"] for each in (plain, split))
    # Matrices are quartered; biases and scales stay whole.
    assert 0.25 < after / before < 0.30
    assert plain["arguments"]["parameters"] == split["arguments"]["parameters"]
    less = plain["memory"]["arguments"] - split["memory"]["arguments"]
    assert less > 0.95 * (before - after)  # small shards are padded to tiles
