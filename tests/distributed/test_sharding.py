"""Tests of the mesh and of the layout of every parameter and moment."""

import types

import jax
import numpy as np
import pytest
from jax.sharding import AxisType

from bert_jax.config import OPTIMIZERS, MeshConfig
from bert_jax.distributed import chips, sharding
from bert_jax.distributed import mesh as mesh_lib
from bert_jax.errors import ConfigError
from bert_jax.model.parameters import leaves
from bert_jax.training import step as step_lib
from tests.conftest import make_batch, make_config, use_mesh

P = jax.P


def test_spec_translates_logical_dims():
    assert sharding.spec("batch", "seq", "replicated") == P(
        ("data", "fsdp"), None, None
    )
    assert sharding.spec("embed", "heads") == P("fsdp", "tensor")


def mesh_config(data, fsdp, tensor):
    return MeshConfig(data=data, fsdp=fsdp, tensor=tensor, shard_optimizer=False)


def test_resolve_mesh_shape_replaces_minus_1():
    resolve = mesh_lib.resolve_mesh_shape
    assert resolve(mesh_config(-1, 2, 1), 8) == (4, 2, 1)
    assert resolve(mesh_config(2, 2, 2), 8) == (2, 2, 2)


@pytest.mark.parametrize("sizes", [(3, 1, 1), (16, 1, 1), (-1, 3, 1), (2, 2, 1)])
def test_mesh_of_another_size_than_the_devices_is_an_error(sizes):
    with pytest.raises(ConfigError, match=r"config\.mesh .* does not fit 8 device"):
        mesh_lib.resolve_mesh_shape(mesh_config(*sizes), 8)


def over_data(spec):
    """Returns the spec of a parameter's moments: fsdp dims are split over data, too."""
    return P(*((("fsdp", "data") if axis == "fsdp" else axis) for axis in spec))


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("shard_optimizer", [False, True])
def test_layout_of_every_parameter_and_moment(name, shard_optimizer):
    mesh = use_mesh(2, 2, 2)
    config = make_config(
        model__num_hidden_layers=1,
        optimizer__name=name,
        optimizer__mu_dtype="bfloat16",
        mesh__shard_optimizer=shard_optimizer,
    )
    _, init = step_lib.init_state(config)
    state = sharding.on_mesh(jax.eval_shape(init), mesh)
    layouts = {name: x.sharding.spec for name, x in leaves(state).items()}
    norm = {"scale": P(None), "bias": P(None)}
    attention = {"kernel": P("fsdp", "tensor"), "bias": P("tensor")}
    output = {"kernel": P("tensor", "fsdp"), "bias": P(None)}
    square = {"kernel": P("fsdp", None), "bias": P(None)}
    layer = "bert.layers.0"
    modules = {
        "bert.embeddings.norm": norm,
        f"{layer}.attention.query": attention,
        f"{layer}.attention.key": attention,
        f"{layer}.attention.value": attention,
        f"{layer}.attention.output": output,
        f"{layer}.attention_norm": norm,
        f"{layer}.intermediate": attention,
        f"{layer}.output": output,
        f"{layer}.output_norm": norm,
        "bert.pooler": square,
        "transform": square,
        "transform_norm": norm,
        "next_sentence": square,
    }
    expected = {
        "bert.embeddings.word": P(None, "fsdp"),
        "bert.embeddings.position": P(None, "fsdp"),
        "bert.embeddings.segment": P(None, "fsdp"),
        "decoder_bias": P(None),
    }
    expected |= {f"{m}.{p}": s for m, ps in modules.items() for p, s in ps.items()}

    def layout_of(mark):
        return {
            name.partition(mark)[2]: spec
            for name, spec in layouts.items()
            if mark in name
        }

    assert layout_of("params.") == expected
    if shard_optimizer:
        expected = {name: over_data(spec) for name, spec in expected.items()}
    # The kernels of the layers have one moment with Muon.
    assert layout_of(".mu.") | layout_of(".trace.") == expected
    is_muon = name == "muon"
    assert layout_of(".nu.") == {
        parameter: spec
        for parameter, spec in expected.items()
        if not (is_muon and ".layers." in parameter and parameter.endswith("kernel"))
    }


def test_place_batch_splits_rows_over_data_and_fsdp():
    mesh = use_mesh(2, 2, 2)
    config = make_config()
    batch = make_batch(config)
    placed = sharding.place_batch(batch, mesh)
    shard = placed["input_ids"].addressable_shards[0]
    assert shard.data.shape == (2, config.phases[0].sequence_length)
    np.testing.assert_array_equal(placed["input_ids"], batch["input_ids"])


def processes_on(processes):
    """Returns a fake mesh, given the process of each device [data, fsdp, tensor]."""
    devices = np.empty(np.shape(processes), object)
    for place, process in np.ndenumerate(np.array(processes)):
        devices[place] = types.SimpleNamespace(process_index=int(process))
    shape = dict(zip(mesh_lib.AXES, devices.shape, strict=True))
    return types.SimpleNamespace(devices=devices, shape=shape)


def parts(processes):
    mesh = processes_on(processes)
    return [
        mesh_lib.host_part(mesh, i) for i in range(int(np.max(np.array(processes))) + 1)
    ]


def test_host_part_is_the_rows_of_the_process_devices():
    # Two devices for each process, along data.
    assert parts([[[0]], [[0]], [[1]], [[1]]]) == [(0, 2), (1, 2)]
    # The same over data and fsdp.
    assert parts([[[0], [0]], [[1], [1]]]) == [(0, 2), (1, 2)]
    # Tensor spans two processes: both hold the same rows.
    assert parts([[[0, 1]], [[2, 3]]]) == [(0, 2), (0, 2), (1, 2), (1, 2)]
    # The order on the mesh may separate the devices of a process, or not start with
    # process 0.
    assert parts([[[1]], [[0]], [[0]], [[1]]]) == [(1, 2), (0, 2)]
    assert parts([[[1]], [[0]]]) == [(1, 2), (0, 2)]


@pytest.mark.parametrize(
    "processes", [[[[0, 0, 1]], [[1, 2, 2]]], [[[0]], [[0]], [[1]]]]
)
def test_unequal_parts_of_processes_are_an_error(processes):
    with pytest.raises(ConfigError, match="unequal parts of a batch"):
        mesh_lib.host_part(processes_on(processes), 0)


def test_data_axis_must_be_a_multiple_of_the_slices():
    devices = [types.SimpleNamespace(slice_index=i // 4) for i in range(8)]
    with pytest.raises(ConfigError, match=r"data=1 must be a multiple of the 2 slices"):
        mesh_lib.make_mesh(mesh_config(1, 8, 1), devices)


@pytest.mark.libtpu
@pytest.mark.parametrize(
    ("topology", "sizes", "parts"),
    [
        ("v5e:16x16", (64, 4, 1), 64),
        ("v6e:16x16", (64, 4, 1), 64),
        ("v6e:16x16", (32, 2, 4), 32),
        ("v4:4x4x4", (32, 2, 1), 16),
        ("v5p:4x4x4", (8, 4, 2), 16),
    ],
)
def test_mesh_may_differ_from_the_sides_of_the_torus(topology, sizes, parts):
    """Each host, or each pair of hosts, still holds an equal part of the rows."""
    devices = chips.devices(topology)
    mesh = mesh_lib.make_mesh(mesh_config(*sizes), devices)
    assert mesh.devices.shape == sizes
    assert len(set(mesh.devices.flat)) == len(devices)
    processes = {device.process_index for device in devices}
    found = [mesh_lib.host_part(mesh, process) for process in processes]
    assert {index for index, _ in found} == set(range(parts))
    assert {count for _, count in found} == {parts}


@pytest.mark.libtpu
@pytest.mark.parametrize("sizes", [(8, 1, 1), (2, 4, 1), (4, 1, 2)])
def test_two_tpu_slices_are_halves_of_the_data_axis(sizes):
    two = chips.devices("2*v5e:2x2")
    mesh = mesh_lib.make_mesh(mesh_config(*sizes), two)
    of_slice = np.vectorize(lambda device: device.slice_index)(mesh.devices)
    half = sizes[0] // 2
    assert (of_slice[:half] == of_slice[0, 0, 0]).all()
    assert (of_slice[half:] == 1 - of_slice[0, 0, 0]).all()
    assert mesh.axis_types == (AxisType.Explicit,) * 3
