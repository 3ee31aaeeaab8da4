"""Opens splits of TensorFlow Datasets, downloading and preparing them if necessary."""

import itertools
import logging
import re
import sys
from typing import Any

from bert_jax.errors import ConfigError

# Retries of a connection. With the 10 of TensorFlow Datasets, a call without a network
# ends after 200 s.
MAX_RETRIES = 3
_NAME_AND_SPLIT = re.compile(r"(?P<name>[^:\[]+(:\d[\d.*]*)?)(:(?P<split>.+))?$")


def name_and_split(argument: str) -> tuple[str, str]:
    """Splits NAME[:VERSION][:SPLIT] into ("NAME[:VERSION]", "SPLIT").

    A missing part is "". A split may be a slice that contains a colon, as in
    glue/sst2:train[:10%].
    """
    match = _NAME_AND_SPLIT.match(argument)
    return (match["name"], match["split"] or "") if match else ("", "")


def builder(name: str, key: str) -> Any:
    """Returns the builder of a dataset.

    Args:
      name: for example "glue/sst2" or "glue/sst2:2.0.0".
      key: config key named in error messages.

    Raises:
      ConfigError: when the dataset, its config or its version does not exist.
    """
    import tensorflow_datasets as tfds

    try:
        return tfds.builder(name)
    except tfds.core.DatasetNotFoundError:
        problem = f"TensorFlow Datasets has no {name!r}"
    except (ValueError, AssertionError) as error:  # an unknown config or version
        problem = f"TensorFlow Datasets has no {name!r}: {str(error).splitlines()[0]}"
    raise ConfigError(
        f"{key}: {problem}; choose one from https://www.tensorflow.org/datasets/catalog"
    )


def dataset(builder: Any, split: str, key: str) -> Any:
    """Returns the `tf.data.Dataset` of a split, in the order in which it was written.

    Raises:
      ConfigError: when the dataset cannot be prepared or the split does not exist.
    """
    import tensorflow_datasets as tfds

    prepare(builder, key)
    name = _name(builder)
    # The order of examples must not depend on threads.
    read_config = tfds.ReadConfig(interleave_cycle_length=1)
    try:
        return builder.as_dataset(
            split=split, shuffle_files=False, read_config=read_config
        )
    except (ValueError, KeyError, AssertionError):
        raise ConfigError(
            f"{key}: {name} has no split {split!r}; use one of"
            f" {', '.join(builder.info.splits or {})}, or a slice such as train[:10%]"
        ) from None


def prepare(builder: Any, key: str) -> None:
    """Downloads and prepares a dataset, unless an earlier call has.

    Raises:
      ConfigError: when it cannot be prepared, within seconds if there is no network.
    """
    import tensorflow_datasets as tfds
    from tensorflow_datasets.core.download import downloader

    if builder.is_prepared():
        return
    print(
        f"{key}: TensorFlow Datasets downloads {_name(builder)!r} (download:"
        f" {builder.info.download_size}) and prepares it in {builder.data_path}, once;"
        " a large dataset takes hours",
        flush=True,
    )
    if not sys.stderr.isatty():
        tfds.disable_progress_bar()
    # urllib3 logs a warning for each of its retries.
    logging.getLogger("urllib3").setLevel(logging.ERROR)
    downloader.MAX_RETRIES = MAX_RETRIES
    try:
        builder.download_and_prepare()
    except Exception as error:  # from code of the dataset, the network or the disk
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        # Either the built-in ConnectionError or the one of requests.
        if type(error).__name__ == "ConnectionError":
            if host := re.search(r"host='([^']+)'", reason):
                reason = f"no connection to {host[1]}"
            reason += (
                "; without a network, use local files, or copy"
                f" {builder.data_path} from a machine that has prepared it"
            )
        raise ConfigError(
            f"{key}: TensorFlow Datasets cannot prepare {_name(builder)!r}: {reason}"
        ) from error


def _name(builder: Any) -> str:
    return builder.info.full_name.rpartition("/")[0]


def parts(argument: str, count: int, key: str) -> list[str]:
    """Splits a tfds: argument into about `count` arguments for slices of equal length.

    Args:
      argument: NAME[:VERSION][:SPLIT][#field]; the default split is "train".
      count: number of slices of each term of a split such as "train+test"; a term with
        fewer examples has fewer slices.
      key: config key named in error messages.

    Returns:
      Arguments that together give the examples of `argument`.

    Raises:
      ConfigError: when the dataset cannot be prepared or the split does not exist.
    """
    import tensorflow_datasets as tfds

    named, separator, field = argument.partition("#")
    name, split = name_and_split(named)
    found = builder(name, key)
    dataset(found, split or "train", key)  # downloads and prepares the dataset
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
