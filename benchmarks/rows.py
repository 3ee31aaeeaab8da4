"""How a benchmark times itself and prints a row."""

import importlib.metadata
import json
import os
import platform
import statistics
import time
from collections.abc import Callable


def alternate(
    functions: dict[str, Callable[[], None]], repeats: int
) -> dict[str, list[float]]:
    """Returns seconds of each call, the functions in turn, so that noise hits all."""
    seconds: dict[str, list[float]] = {name: [] for name in functions}
    for _ in range(repeats):
        for name, function in functions.items():
            start = time.perf_counter()
            function()
            seconds[name].append(time.perf_counter() - start)
    return seconds


def print_row(
    benchmark: str,
    case: str,
    unit: str,
    rates: list[float],
    peer: str | None = None,
    peer_rates: list[float] | None = None,
    **more: object,
) -> None:
    """Prints the row of repeated measurements `rates`, and of a peer's if there is one.

    The ratio is the median of the ratios of neighbouring repeats.
    """
    value = statistics.median(rates)
    ratio = peer_value = None
    if peer_rates:
        peer_value = statistics.median(peer_rates)
        ratio = statistics.median(
            ours / theirs for ours, theirs in zip(rates, peer_rates, strict=True)
        )
    row = {
        "benchmark": benchmark,
        "case": case,
        "value": round(value, 3),
        "unit": unit,
        "peer": peer,
        "peer_value": peer_value and round(peer_value, 3),
        "ratio": ratio and round(ratio, 3),
        "spread": round((max(rates) - min(rates)) / value, 3),
        "repeats": len(rates),
        **more,
        "cpu_count": os.cpu_count(),
        "versions": versions(),
    }
    print(json.dumps(row), flush=True)


def versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in ("jax", "flax", "tensorflow", "torch", "transformers"):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
