"""How a benchmark times itself and prints a row."""

import importlib.metadata
import json
import multiprocessing
import os
import platform
import statistics
import time
from collections.abc import Callable


def alternate(
    builders: dict[str, Callable[..., Callable[[], None]]],
    arguments: tuple[object, ...],
    repeats: int,
    warmups: int = 1,
) -> dict[str, list[float]]:
    """Returns the seconds of a call of functions that take turns, one number a turn.

    Turns, so that the machine's noise hits all alike. Each function is built and run in
    a process of its own, which waits while the others run: in one process the memory
    and the threads that one library keeps slow the next one down. A turn is three calls
    of which the first is not timed: it finds the caches full of the others' data.

    Args:
      builders: by name; builder(*arguments) returns the function to time.
      arguments: picklable.
      repeats: turns of each function.
      warmups: turns before those, for compilation and memory.
    """
    # Or the first on a GPU would take three quarters of its memory.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    context = multiprocessing.get_context("spawn")
    pipes, processes = {}, []
    for name, builder in builders.items():
        pipes[name], theirs = context.Pipe()
        process = context.Process(
            target=_serve, args=(theirs, builder, arguments), daemon=True
        )
        process.start()
        processes.append(process)
        theirs.close()
    seconds: dict[str, list[float]] = {name: [] for name in builders}
    for repeat in range(-warmups, repeats):
        for name, pipe in pipes.items():
            pipe.send("run")
            elapsed = pipe.recv()
            if repeat >= 0:
                seconds[name].append(elapsed)
    for process in processes:
        process.terminate()
    return seconds


def _serve(pipe, builder, arguments: tuple[object, ...]) -> None:
    function = builder(*arguments)
    while pipe.recv():
        function()
        start = time.perf_counter()
        function()
        function()
        pipe.send((time.perf_counter() - start) / 2)


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
