"""Reading of libtpu's final schedules, one written by hand and a real one."""

import pytest

from benchmarks import tpu_bundles
from bert_jax.distributed import chips
from bert_jax.preflight.hlo import CompiledProgram
from tests.commands import run_anew

# Two bundles, a loop of 5 iterations of four bundles, of which one is a loop of 3, and
# a bundle. A branch forward skips a region, which counts once.
BUNDLES = """
= control target key start
LB: loop body
     0   :  { %s1 = smov 0 } /* Start region 1 */
   0x1   :  { %10 = sbr.rel (%p1) target = $region4 }
   0x2 LB: > { %s2 = smov 0 /* a comment
second_minor_factor: 1 */ } /* Start region 2 :: Start region 4 */
   0x3 LB: >> { %p2 = scmp.ge.s32.totalorder %s2, 3 /* loop exit test */ ;; \
%11 = sbr.rel (!%p2) target = $region3 } /* Start region 3 */
   0x4   : > { %p3 = scmp.ge.s32.totalorder %s1, 5 /* loop exit test */ }
   0x5   : > { %12 = sbr.rel (!%p3) target = $region2 }
   0x6   :  { %13 = vsyncpa [#allocation1], 1 }
"""

HLO = """
%inner (a: bf16[8,128]) -> bf16[8,128] {
  %a = bf16[8,128]{1,0} parameter(0)
  ROOT %dot.1 = bf16[8,128]{1,0} dot(%a, %a), metadata={op_name="jit(step)/layer/dot"}
}

ENTRY %main (p: bf16[8,128]) -> bf16[8,128] {
  %p = bf16[8,128]{1,0:T(8,128)(2,1)} parameter(0)
  %fetched = bf16[8,128]{1,0:T(8,128)(2,1)S(1)} copy-done(%p)
  %fusion.1 = bf16[8,128]{1,0:T(8,128)(2,1)} fusion(%p, %fetched), kind=kOutput, \
calls=%inner, backend_config={"estimated_cycles":"7"}
  ROOT %kernel.1 = bf16[8,128]{1,0:T(8,128)(2,1)} custom-call(%fusion.1), \
custom_call_target="tpu_custom_call", metadata={op_name="jit(step)/attention/call"}
}
"""


def test_bundles_in_a_loop_count_once_per_iteration():
    assert tpu_bundles.bundle_cycles(BUNDLES) == 2 + 5 * (3 + 3) + 1


def test_operations_have_the_larger_of_bundles_and_bytes(tmp_path):
    chip = chips.chip_of("TPU v5 lite")
    for name in ("fusion.1", "kernel.1"):
        (tmp_path / f"123-{name}-66-final_bundles.txt").write_text(BUNDLES)
        analysis = tmp_path / f"123-{name}-67-schedule-analysis_final_bundles.txt"
        analysis.write_text("")
    fusion, kernel = tpu_bundles.operations(CompiledProgram(HLO), str(tmp_path), chip)
    assert (fusion.name, fusion.kind, fusion.times) == ("fusion.1", "matmul", 1)
    assert (kernel.name, kernel.kind, kernel.times) == ("kernel.1", "attention", 1)
    assert (fusion.estimated_cycles, kernel.estimated_cycles) == (7, None)
    assert fusion.bundle_cycles == kernel.bundle_cycles == 33
    # One operand and the result; the other operand is in the core's memory.
    per_cycle = 819e9 / chip.clock_hz
    assert fusion.hbm_cycles == pytest.approx(2 * 8 * 128 * 2 / per_cycle)
    assert fusion.cycles == 33
    larger = tpu_bundles.Operation("x", "matmul", 1, 7, 33, 40.0)
    assert larger.cycles == 40.0


@pytest.mark.slow
def test_a_topology_that_is_not_a_tpus_is_one_line():
    found = run_anew("benchmarks.tpu_schedule", "--topology=local")
    assert found.returncode == 2 and "--topology=local" in found.stderr
    assert "Traceback" not in found.stderr
