"""The search for the largest batch, with a compiler whose memory is linear."""

import pytest

from bert_jax.preflight import compile as compile_lib
from bert_jax.preflight.compile import Trial
from bert_jax.preflight.hlo import CompiledProgram
from tests.conftest import make_config

HBM = 10_000


def linear_compiler(per_sequence, fixed=500, early=1.0):
    """Returns a compile function for programs of `fixed + per_sequence * n` bytes.

    Args:
      per_sequence: bytes of a sequence.
      fixed: bytes of the program without sequences.
      early: reported bytes of a rejected program over its actual bytes.
    """

    def compile_(sequences):
        compile_.tried.append(sequences)
        total = fixed + per_sequence * sequences
        if total > HBM:
            facts = {"needed_bytes": max(early * total, HBM + 1)}
            return Trial(make_config(), sequences, facts)
        facts = {"memory": {"total": total}}
        return Trial(make_config(), sequences, facts, CompiledProgram(""))

    compile_.tried = []
    return compile_


@pytest.mark.parametrize("wanted", [8, 64, 800, 5000, 100_000])
@pytest.mark.parametrize("per_sequence", [7, 10, 12])
@pytest.mark.parametrize("early", [0.8, 1.0, 1.3])
def test_the_largest_is_found_and_was_compiled(wanted, per_sequence, early):
    compile_ = linear_compiler(per_sequence, early=early)
    found = compile_lib.largest_batch(compile_(wanted), HBM, compile_)
    largest = found.sequences
    best = (HBM - 500) // per_sequence
    accuracy = {0.8: 0.5, 1.0: 0.93, 1.3: 0.8}[early]  # a factor of two if misled
    assert accuracy * best - compile_lib.TILE <= largest <= best
    assert found.fits and largest in compile_.tried
    assert largest == wanted or largest % compile_lib.TILE == 0
    assert len(compile_.tried) <= 1 + compile_lib.MAX_SEARCH + (early < 1)


@pytest.mark.parametrize("wanted", [8, 64])
@pytest.mark.parametrize("best", [1, 2, 6, 15, 23, 47])
def test_small_batches_are_searched_by_single_sequences(wanted, best):
    compile_ = linear_compiler((HBM - 500) / (best + 0.5))
    found = compile_lib.largest_batch(compile_(wanted), HBM, compile_)
    largest = found.sequences
    assert 0.93 * best - 1 <= largest <= best and found.fits
    assert len(compile_.tried) <= 1 + compile_lib.MAX_SEARCH


def test_memory_of_rejected_programs_may_decrease_with_their_batch():
    """The memory of a step on a v5e, scaled; 1,600 rows take more than 1,680."""
    seen = {8192: 80_000, 1024: 2_940, 1680: 10_160, 1600: 10_560}

    def compile_(sequences):
        total = seen.get(sequences, 7 * sequences)
        return linear_compiler(0, fixed=total)(sequences)

    found = compile_lib.largest_batch(compile_(8192), HBM, compile_)
    assert found.sequences == 1312 and found.fits


def test_the_batch_is_halved_if_all_guesses_are_too_large():
    compile_ = linear_compiler((HBM - 500) / 3.5, early=0.0)  # always just too large
    found = compile_lib.largest_batch(compile_(64), HBM, compile_)
    assert 1 <= found.sequences <= 3 and found.fits
    assert len(compile_.tried) <= 1 + compile_lib.MAX_SEARCH + 6  # 64 halved to 1


def test_the_result_is_none_if_not_even_one_sequence_fits():
    compile_ = linear_compiler(10, fixed=2 * HBM)
    assert compile_lib.largest_batch(compile_(8), HBM, compile_) is None
