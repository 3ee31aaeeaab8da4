"""The search for the largest batch, with a compiler whose memory is linear."""

import dataclasses

import pytest

from bert_jax.preflight import aot
from bert_jax.preflight.aot import EarlyMemory, Trial
from tests.conftest import make_config, use_mesh

HBM = 10_000


def linear_compiler(per_sequence, fixed=500):
    """Returns a compile function for programs of `fixed + per_sequence * n` bytes."""

    def compile_(config):
        compile_.tried.append(config.phases[0].global_batch_size // 8)
        total = fixed + per_sequence * compile_.tried[-1]
        if total > HBM:
            compile_.refused += 1
            return Trial(config, 0.0, {}, needed_bytes=total)
        return Trial(config, 0.0, {}, memory={"total": total})

    compile_.tried, compile_.refused = [], 0
    return compile_


@pytest.mark.parametrize("wanted", [8, 64, 800, 5000])
@pytest.mark.parametrize("per_sequence", [7, 10, 12])  # the early estimate is 10
def test_the_largest_is_found_and_was_compiled(wanted, per_sequence):
    mesh = use_mesh(8, 1, 1)
    config = make_config(phase={"global_batch_size": 8 * wanted})
    compile_ = linear_compiler(per_sequence)
    early = EarlyMemory(at=64, bytes_there=640.0, bytes_per_sequence=10.0)
    first = compile_(config)
    largest, trial = aot.largest_that_fits(first, early, mesh, 0, HBM, compile_)
    best = (HBM - 500) // per_sequence
    assert 0.93 * best - aot.TILE <= largest <= max(best, wanted)
    assert trial.fits and trial.config.phases[0].global_batch_size == 8 * largest
    assert len(compile_.tried) <= 1 + aot.MAX_TRIES
    # Compiling a program that fits takes minutes: the first, and one or two more.
    assert len(compile_.tried) - compile_.refused <= first.fits + 2


@pytest.mark.parametrize("per_sequence", [7, 10, 12])
def test_the_largest_is_found_below_a_batch_that_was_not_compiled(per_sequence):
    mesh = use_mesh(8, 1, 1)
    config = make_config(phase={"global_batch_size": 8 * 100_000})
    compile_ = linear_compiler(per_sequence)
    early = EarlyMemory(at=64, bytes_there=640.0, bytes_per_sequence=10.0)
    first = aot.uncompiled(config, mesh, 0, early.of(100_000))
    assert not first.fits and first.needed_bytes == 1_000_000
    largest, trial = aot.largest_that_fits(first, early, mesh, 0, HBM, compile_)
    best = (HBM - 500) // per_sequence
    assert 0.93 * best - aot.TILE <= largest <= best and trial.fits
    assert len(compile_.tried) <= aot.MAX_TRIES
    assert len(compile_.tried) - compile_.refused <= 2


@pytest.mark.parametrize("wanted", [8, 64])
@pytest.mark.parametrize("best", [1, 2, 6, 15, 23, 47])
@pytest.mark.parametrize("share", [0.8, 1.0, 1.2])  # early estimate over actual bytes
def test_small_batches_are_searched_by_single_sequences(wanted, best, share):
    mesh = use_mesh(8, 1, 1)
    config = make_config(phase={"global_batch_size": 8 * wanted})
    per_sequence = (HBM - 500) / (best + 0.5)
    compile_ = linear_compiler(per_sequence)
    early = EarlyMemory(64, 64 * per_sequence * share, per_sequence * share)
    first = compile_(config)
    largest, trial = aot.largest_that_fits(first, early, mesh, 0, HBM, compile_)
    assert 0.93 * best - 1 <= largest <= best and trial.fits
    assert len(compile_.tried) <= 1 + aot.MAX_TRIES


@pytest.mark.parametrize("best", [1, 2, 3, 7])
def test_the_batch_is_halved_if_all_guesses_are_too_large(best):
    mesh = use_mesh(8, 1, 1)
    config = make_config(phase={"global_batch_size": 8 * 64})
    compile_ = linear_compiler((HBM - 500) / (best + 0.5))
    early = EarlyMemory(at=64, bytes_there=640.0, bytes_per_sequence=10.0)
    first = dataclasses.replace(compile_(config), needed_bytes=HBM + 100)
    largest, trial = aot.largest_that_fits(first, early, mesh, 0, HBM, compile_)
    assert best / 2 <= largest <= best and trial.fits
    assert len(compile_.tried) <= 1 + aot.MAX_TRIES + 6  # 64 halved to 1


def test_the_result_is_none_if_not_even_one_sequence_fits():
    mesh = use_mesh(8, 1, 1)
    config = make_config(phase={"global_batch_size": 64})
    compile_ = linear_compiler(10, fixed=2 * HBM)
    early = EarlyMemory(at=64, bytes_there=2 * HBM + 640, bytes_per_sequence=10.0)
    found = aot.largest_that_fits(compile_(config), early, mesh, 0, HBM, compile_)
    assert found == (0, None)


def test_accumulation_divides_the_batch_until_it_fits():
    mesh = use_mesh(8, 1, 1)
    config = make_config(phase={"global_batch_size": 8 * 24})
    parts = [
        aot.accumulation_for(config, mesh, 0, largest) for largest in (24, 23, 7, 1)
    ]
    assert parts == [1, 2, 4, 24]
    assert aot.accumulation_for(config, mesh, 0, 7, at_least=5) == 6
    assert aot.accumulation_for(config, mesh, 0, 0) is None


def test_changed_changes_only_one_phase():
    mesh = use_mesh(4, 2, 1)
    config = make_config(accumulation_steps=2, phase={"global_batch_size": 64})
    config = dataclasses.replace(config, phases=config.phases * 2)
    assert aot.micro_batch(config, mesh, 1) == 4
    other = aot.changed(config, mesh, 1, sequences=6, layers=5)
    assert aot.micro_batch(other, mesh, 1) == 6
    assert other.phases[0] == config.phases[0]
    assert other.model.num_hidden_layers == 5
