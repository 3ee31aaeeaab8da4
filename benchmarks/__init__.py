"""`python -m benchmarks.NAME` prints one JSON object a row.

A row: benchmark, case, value, unit, peer, peer_value, ratio, spread, versions. Values
are medians over repeats, a peer is timed in the same call in turn with us, and spread
is (max - min) / median of our repeats. See results/ for rows kept with their hardware.
"""
