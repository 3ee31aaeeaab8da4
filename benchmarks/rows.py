"""Times functions in alternation and prints the rows of a benchmark."""

import importlib.metadata
import json
import multiprocessing
import os
import platform
import statistics
import time
from collections.abc import Callable

LIBRARIES = (
    *("jax", "libtpu", "flax", "tensorflow", "torch", "transformers"),
    *("sentence-transformers", "keras", "keras-hub"),
)


def alternate(
    builders: dict[str, Callable[..., Callable[[], None]]],
    arguments: tuple[object, ...],
    repeats: int,
) -> dict[str, list[float]]:
    """Times functions in alternation and returns the seconds per call of each repeat.

    The functions alternate so that noise of the machine affects all equally. Each is
    built and run in a process of its own, which waits while the others run, because in
    a shared process the memory and threads that one library keeps slow down the next.
    A repeat is three calls. The first is not timed, because the CPU's caches then hold
    the data of the other functions. Nor is the first repeat, which compiles the
    function and allocates its memory.

    Args:
      builders: builders by name; builder(*arguments) returns the function to time.
      arguments: picklable arguments of the builders.
      repeats: timed repeats of each function.
    """
    # Otherwise the first process on a GPU would reserve three quarters of its memory.
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
    for _ in range(1 + repeats):
        for name, pipe in pipes.items():
            pipe.send("run")
            seconds[name].append(pipe.recv())
    for process in processes:
        process.terminate()
    return {name: found[1:] for name, found in seconds.items()}


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
    digits: int = 3,
    **more: object,
) -> None:
    """Prints the row of repeated measurements, optionally compared with a peer's.

    The ratio is the median of the ratios of corresponding repeats; there is none if the
    peer has a zero. Values have `digits` digits after the point.
    """
    value = statistics.median(rates)
    ratio = peer_value = None
    if peer_rates:
        peer_value = statistics.median(peer_rates)
    if peer_rates and all(peer_rates):
        ratio = statistics.median(
            ours / theirs for ours, theirs in zip(rates, peer_rates, strict=True)
        )
    row = {
        "benchmark": benchmark,
        "case": case,
        "value": round(value, digits),
        "unit": unit,
        "peer": peer,
        "peer_value": peer_value and round(peer_value, digits),
        "ratio": ratio and round(ratio, 3),
        "spread": value and round((max(rates) - min(rates)) / value, 3),
        "repeats": len(rates),
        **more,
        "cpu_count": os.cpu_count(),
        "versions": versions(),
    }
    print(json.dumps(row), flush=True)


def versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in LIBRARIES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
