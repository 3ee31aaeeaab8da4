"""What variables a TF1 checkpoint has, read in a process of its own.

TensorFlow aborts the process that reads an index with impossible shapes or dtypes, and
a checkpoint may come from anywhere.
"""

import json
import os
import subprocess
import sys

from bert_jax.lazy_tensorflow import tf


class UnreadableError(Exception):
    """Why a checkpoint's index could not be read."""


def list_variables(prefix: str) -> dict[str, tuple[tuple[int, ...], str]]:
    """Returns the shape and the name of the dtype of every variable, by name.

    Args:
      prefix: the checkpoint's path without .index.

    Raises:
      UnreadableError: when its index is missing, damaged or forged.
    """
    # It finds this package where this process did.
    path = os.pathsep.join(filter(None, [os.getcwd(), *sys.path]))
    child = subprocess.run(
        [sys.executable, "-m", __spec__.name, prefix],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": path},
    )
    if child.returncode:
        # Of an exception the last line tells; of an abort a stack of addresses is left.
        lines = child.stderr.strip().splitlines()
        raise UnreadableError(lines[-1] if child.returncode == 1 else "a forged index")
    found = json.loads(child.stdout)
    return {name: (tuple(shape), dtype) for name, (shape, dtype) in found.items()}


def main(prefix: str) -> None:
    reader = tf.train.load_checkpoint(prefix)
    dtypes = reader.get_variable_to_dtype_map()
    shapes = reader.get_variable_to_shape_map()
    print(json.dumps({name: (shapes[name], dtypes[name].name) for name in shapes}))


if __name__ == "__main__":
    main(sys.argv[1])
