"""Deletes tf.data iterators whose threads call Python without deadlocks.

The destructor of an iterator waits until its threads have returned from Python. Two
deletions never end (seen with TensorFlow 2.21 and Python 3.11):

- The garbage collector runs in whichever thread allocates an object. If this is a
  thread of the iterator that it deletes, that thread waits for itself.
- When the interpreter ends, it ends every other thread that asks for the GIL, so that
  calls into Python do not return.

Therefore another thread deletes iterators, and all are deleted before Python ends.
Other threads can do this, because TensorFlow releases the GIL while it waits.
"""

import atexit
import functools
import gc
import queue
import threading
from collections.abc import Callable
from typing import Any

from bert_jax.lazy_tensorflow import tf

# The attributes of iterators to delete; None ends the thread. `SimpleQueue.put` may be
# called in a garbage collection.
_attributes: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()


@functools.cache
def delete_in_a_thread() -> None:
    """Makes a thread delete the iterators of this process, all of them at its end.

    This includes iterators of datasets that are derived from others by `map`, `zip` and
    so on. Functions registered with `atexit` after this call run while iterators can
    still be used.
    """
    iterator: Any = type(iter(tf.data.Dataset.range(0)))
    iterator.__del__ = _hand_over
    thread = threading.Thread(target=_delete, name="delete iterators", daemon=True)
    thread.start()

    def delete_all() -> None:
        for found in gc.get_objects():
            if type(found) is iterator:
                _hand_over(found)
        _attributes.put(None)
        thread.join()

    atexit.register(delete_all)


def _hand_over(iterator: Any, put: Callable[[Any], None] = _attributes.put) -> None:
    """Moves the only reference to the C++ iterator into the queue."""
    attributes = dict(vars(iterator))
    vars(iterator).clear()
    put(attributes)


def _delete() -> None:
    while (attributes := _attributes.get()) is not None:
        attributes.clear()
