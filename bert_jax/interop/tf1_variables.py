"""Lists the variables of a TF1 checkpoint in a subprocess.

TensorFlow aborts the process that reads an index with impossible shapes or dtypes, and
checkpoints are not trusted.
"""

import json
import os
import subprocess
import sys

from bert_jax.lazy_tensorflow import tf


class UnreadableError(Exception):
    """The index of a checkpoint cannot be read; the message is the reason."""


def list_variables(prefix: str) -> dict[str, tuple[tuple[int, ...], str]]:
    """Returns the shape and the name of the dtype of every variable, by name.

    Args:
      prefix: the checkpoint's path without .index.

    Raises:
      UnreadableError: if its index is missing, corrupt or forged.
    """
    # The subprocess imports this package from the same place as this process.
    path = os.pathsep.join(filter(None, [os.getcwd(), *sys.path]))
    child = subprocess.run(
        [sys.executable, "-m", __spec__.name, prefix],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": path},
    )
    if child.returncode:
        # The last line names an exception; after an abort there are only addresses.
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
