"""Formats bytes, times and amounts of money with suitable units."""

import math

BINARY = ("B", "KiB", "MiB", "GiB")
DECIMAL = ("B", "kB", "MB", "GB")


def memory(num_bytes: float) -> str:
    """Formats bytes of memory, for example 143.8 KiB or 4.316 GiB."""
    return _size(num_bytes, 1024, BINARY)


def traffic(num_bytes: float) -> str:
    """Formats bytes of traffic in decimal units, for example 41.8 kB or 1.250 GB.

    Data sheets of links use decimal units.
    """
    return _size(num_bytes, 1000, DECIMAL)


def _size(num_bytes: float, base: int, units: tuple[str, ...]) -> str:
    for unit in units:
        if round(abs(num_bytes), 1) < base or unit == units[-1]:
            break
        num_bytes /= base
    digits = {units[0]: 0, units[-1]: 3}.get(unit, 1)
    return f"{num_bytes:,.{digits}f} {unit}"


def run_time(hours: float) -> str:
    """Formats hours, for example as 0.85 seconds, 23.4 minutes or 1,204.5 hours."""
    if hours >= 1:
        return f"{hours:,.1f} hours"
    if hours >= 1 / 60:
        return f"{hours * 60:.1f} minutes"
    return f"{hours * 3600:.2f} seconds"


def step_time(seconds: float) -> str:
    """Formats seconds, for example as 50.14 ms or 12.03 us."""
    return f"{seconds * 1e3:,.2f} ms" if seconds >= 1e-3 else f"{seconds * 1e6:,.2f} us"


def money(amount: float) -> str:
    """Formats money as an integer from 100 on, else with two or more digits."""
    if amount >= 100:
        return f"{amount:,.0f}"
    small = 1 - math.floor(math.log10(amount)) if amount else 0
    return f"{amount:.{max(small, 2)}f}"
