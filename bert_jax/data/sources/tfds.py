"""A split of a dataset of TensorFlow Datasets, prepared if it is not there yet."""

import itertools
import logging
import re
from typing import Any

from bert_jax.errors import ConfigError

_NAME_AND_SPLIT = re.compile(r"(?P<name>[^:\[]+(:\d[\d.*]*)?)(:(?P<split>.+))?$")


def name_and_split(argument: str) -> tuple[str, str]:
    """Returns the parts of NAME[:VERSION][:SPLIT]; "" where one is not there.

    A split may be a part of one, with a colon of its own: glue/sst2:train[:10%].
    """
    match = _NAME_AND_SPLIT.match(argument)
    return (match["name"], match["split"] or "") if match else ("", "")


def builder(name: str, key: str) -> Any:
    """Returns the builder of a dataset.

    Args:
      name: as "glue/sst2" or "glue/sst2:2.0.0".
      key: of the config, which messages name.

    Raises:
      ConfigError: when there is no such dataset, config or version.
    """
    import tensorflow_datasets as tfds

    try:
        return tfds.builder(name)
    except tfds.core.DatasetNotFoundError:
        problem = f"TensorFlow Datasets has no {name!r}"
    except (ValueError, AssertionError) as error:  # a config or version it has not
        problem = f"TensorFlow Datasets has no {name!r}: {str(error).splitlines()[0]}"
    raise ConfigError(
        f"{key}: {problem}; see https://www.tensorflow.org/datasets/catalog"
    )


def dataset(builder: Any, split: str, key: str) -> Any:
    """Returns the `tf.data.Dataset` of a split, in the order in which it was written.

    Raises:
      ConfigError: when it cannot be prepared or has no such split.
    """
    import tensorflow_datasets as tfds

    name = builder.info.full_name.rpartition("/")[0]
    # Which warns of every one of its tries.
    logging.getLogger("urllib3").setLevel(logging.ERROR)
    try:
        builder.download_and_prepare()
    except Exception as error:  # the dataset's own code, the network, the disk
        reason = str(error).strip().splitlines()[:1] or [type(error).__name__]
        is_offline = type(error).__name__ == "ConnectionError"  # Python's, requests'
        hint = "; without a network give files of your own" if is_offline else ""
        raise ConfigError(
            f"{key}: TensorFlow Datasets cannot prepare {name!r}: {reason[0]}{hint}"
        ) from error
    # The order of examples must not depend on threads.
    read_config = tfds.ReadConfig(interleave_cycle_length=1)
    try:
        return builder.as_dataset(
            split=split, shuffle_files=False, read_config=read_config
        )
    except (ValueError, KeyError, AssertionError):
        raise ConfigError(
            f"{key}: {name} has no split {split!r}; it has"
            f" {', '.join(builder.info.splits or {})}, and parts such as train[:10%]"
        ) from None


def parts(argument: str, count: int, key: str) -> list[str]:
    """Returns about `count` arguments that together give the examples of one.

    Args:
      argument: NAME[:VERSION][:SPLIT][#field]; without a split it is "train".
      count: of parts of equal length; there are more for a split that is a sum, and
        fewer where there are not as many examples.
      key: of the config, which messages name.

    Raises:
      ConfigError: when the dataset cannot be prepared or has no such split.
    """
    import tensorflow_datasets as tfds

    named, separator, field = argument.partition("#")
    name, split = name_and_split(named)
    found = builder(name, key)
    dataset(found, split or "train", key)  # prepares it
    splits = found.info.splits
    result = []
    for ranges in tfds.core.ReadInstruction.from_spec(split or "train").to_absolute(
        splits
    ):
        begin = ranges.from_ or 0
        end = splits[ranges.splitname].num_examples if ranges.to is None else ranges.to
        bounds = sorted({begin + (end - begin) * i // count for i in range(count + 1)})
        result += [
            f"{name}:{ranges.splitname}[{a}:{b}]{separator}{field}"
            for a, b in itertools.pairwise(bounds)
        ]
    return result
