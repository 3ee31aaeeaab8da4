"""Runs commands in forks of a process that has imported their libraries.

    python -m tests.warm

Each line of standard input is a JSON object with module, args, cwd, env, stdout and
stderr (paths). The answer is one line, the return code, negative for a signal. The fork
then runs `python -m module args` to its end, as a new interpreter would: neither XLA
nor TensorFlow has been initialized before.
"""

import atexit
import gc
import json
import os
import runpy
import sys
import threading
import warnings

import bert_jax


def import_libraries() -> None:
    """Imports what most commands import, TensorFlow included, which takes seconds."""
    import matplotlib.backends.backend_agg
    import matplotlib.figure  # noqa: F401
    import orbax.checkpoint  # noqa: F401

    from bert_jax import cli, inference  # noqa: F401
    from bert_jax.data.batches import pipeline  # noqa: F401
    from bert_jax.data.corpus import build  # noqa: F401
    from bert_jax.finetuning import sweep  # noqa: F401
    from bert_jax.lazy_tensorflow import without_keras
    from bert_jax.training import step  # noqa: F401

    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    with without_keras():
        import tensorflow  # noqa: F401


def become(request: dict) -> None:
    """Makes this process the one that is asked for."""
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    for name, fd in (("stdout", 1), ("stderr", 2)):
        file = os.open(request[name], os.O_WRONLY | os.O_APPEND)
        os.dup2(file, fd)
        os.close(file)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    sys.stdin = open(0)
    sys.path[0] = request["cwd"]
    sys.argv = [request["module"], *request["args"]]
    bert_jax.BEGAN = bert_jax.clock()


def fork() -> int:
    with warnings.catch_warnings():  # JAX warns, which has no threads here yet
        warnings.simplefilter("ignore")
        return os.fork()


def run_to_its_end(module: str) -> None:
    """Runs a module, and exits without freeing the libraries, which takes 0.2 s."""
    if os.environ.get("FUZZ") == "full":  # slower proofs of .ci/run: as for users
        runpy.run_module(module, run_name="__main__", alter_sys=True)
        sys.exit()
    code = 0
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        if not isinstance(end.code, int | None):
            raise
        code = end.code or 0
    threading._shutdown()  # waits for threads, as an interpreter does
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def main() -> None:
    import_libraries()
    gc.freeze()
    for line in iter(sys.stdin.readline, ""):
        request = json.loads(line)
        pid = fork()
        if pid == 0:
            become(request)
            run_to_its_end(request["module"])
        _, status = os.waitpid(pid, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    main()
