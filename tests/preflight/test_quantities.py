"""Formatted quantities have significant digits and suitable units."""

import pytest

from bert_jax.preflight import quantities


@pytest.mark.parametrize(
    ("num_bytes", "memory", "traffic"),
    [
        (0, "0 B", "0 B"),
        (8, "8 B", "8 B"),
        (-1_321_688_576, "-1.231 GiB", "-1.322 GB"),
        (1000, "1,000 B", "1.0 kB"),
        (41_820, "40.8 KiB", "41.8 kB"),
        (2**20 - 1, "1.0 MiB", "1.0 MB"),
        (268.2e6, "255.8 MiB", "268.2 MB"),
        (4_417_749_504, "4.114 GiB", "4.418 GB"),
        (2109 * 2**30, "2,109.000 GiB", "2,264.522 GB"),
    ],
)
def test_bytes(num_bytes, memory, traffic):
    assert quantities.memory(num_bytes) == memory
    assert quantities.traffic(num_bytes) == traffic


@pytest.mark.parametrize(
    ("hours", "text"),
    [
        (0.85 / 3600, "0.85 seconds"),
        (0.39, "23.4 minutes"),
        (1.0, "1.0 hours"),
        (1204.5, "1,204.5 hours"),
    ],
)
def test_run_time(hours, text):
    assert quantities.run_time(hours) == text


def test_step_time():
    assert quantities.step_time(0.05014) == "50.14 ms"
    assert quantities.step_time(12.03e-6) == "12.03 us"


@pytest.mark.parametrize(
    ("amount", "text"),
    [
        (0, "0.00"),
        (0.00023, "0.00023"),
        (0.0123, "0.012"),
        (1.234, "1.23"),
        (45.6, "45.60"),
        (4454.4, "4,454"),
    ],
)
def test_money(amount, text):
    assert quantities.money(amount) == text
