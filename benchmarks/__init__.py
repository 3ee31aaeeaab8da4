"""Benchmarks. `python -m benchmarks.NAME` prints one JSON object per row.

A row has the keys benchmark, case, value, unit, peer, peer_value, ratio, spread and
versions. Values are medians over repeats. A peer is timed in the same call, alternating
with bert_jax. Spread is (max - min) / median over the repeats of bert_jax. The
directory results/ has rows together with their hardware.
"""
