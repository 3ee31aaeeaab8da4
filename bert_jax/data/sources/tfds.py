"""Reads splits of TensorFlow Datasets, downloading and preparing them if necessary."""

import logging
import re
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np

from bert_jax.data.sources.kind import (
    DatasetSource,
    Document,
    Source,
    assemble,
    choose_text,
)
from bert_jax.data.sources.lines import Reading
from bert_jax.data.sources.unwrap import Stream
from bert_jax.errors import ConfigError

_KEY = "config.data.sources"
# Retries of a connection. With the 10 of TensorFlow Datasets, a call without a network
# ends after 200 s.
MAX_RETRIES = 3
_NAME_AND_SPLIT = re.compile(r"(?P<name>[^:\[]+(:\d[\d.*]*)?)(:(?P<split>.+))?$")


class TensorFlowDataset(DatasetSource):
    """A text field of a split of a dataset; by default "text" or the only one."""

    name = "tfds"
    form = "tfds:NAME[:SPLIT][#field]"
    is_download = True

    def __init__(self, spec: str):
        super().__init__(spec)
        named, _, self._field = self.argument.partition("#")
        self._name, split = name_and_split(named)
        self._split = split or "train"
        if not self._name:
            raise ConfigError(
                f"{_KEY} has {spec!r}, which names no dataset; write {self.form}"
            )

    def find(self, record: str | None) -> Source:
        """Returns no version: only one in the spec shows that a dataset has changed."""
        return Source(self)

    def prepare(self) -> None:
        prepare(builder(self._name, _KEY), _KEY)

    def read(self, reading: Reading) -> Iterator[Document]:
        opened = builder(self._name, _KEY)
        texts = list(_text_features(opened.info.features or {}))
        path = choose_text(texts, self._field, self._name).split(".")
        examples = dataset(opened, self._split, _KEY)

        def stream() -> Stream:
            for number, example in enumerate(examples.as_numpy_iterator(), start=1):
                for key in path:
                    example = example[key]
                where = f"{self._name} {self._split}:{number}"
                yield from reading.lines_of(example, where)
                yield None

        yield from assemble(stream(), reading)


def _text_features(features: Any, prefix: str = "") -> Iterator[str]:
    """Yields the dotted paths of all features that are scalar strings."""
    for key, feature in features.items():
        if hasattr(feature, "items"):
            yield from _text_features(feature, f"{prefix}{key}.")
        elif feature.shape == () and np.dtype(feature.np_dtype) == object:
            yield prefix + key


def name_and_split(argument: str) -> tuple[str, str]:
    """Splits NAME[:VERSION][:SPLIT] into ("NAME[:VERSION]", "SPLIT"), "" if missing.

    A split may be a slice that contains a colon, as in glue/sst2:train[:10%].
    """
    match = _NAME_AND_SPLIT.match(argument)
    return (match["name"], match["split"] or "") if match else ("", "")


def builder(name: str, key: str) -> Any:
    """Returns the builder of a dataset, such as "glue/sst2" or "glue/sst2:2.0.0".

    Errors name `key`, a key of the config.
    """
    import tensorflow_datasets as tfds

    try:
        return tfds.builder(name)
    # The others are for an unknown config or version.
    except (tfds.core.DatasetNotFoundError, ValueError, AssertionError) as error:
        raise ConfigError(
            f"{key}: TensorFlow Datasets has no {name!r}: {str(error).splitlines()[0]};"
            " choose one from https://www.tensorflow.org/datasets/catalog"
        ) from None


def dataset(builder: Any, split: str, key: str) -> Any:
    """Returns the `tf.data.Dataset` of a split, in the order of writing."""
    import tensorflow_datasets as tfds

    prepare(builder, key)
    # The order of examples must not depend on threads.
    read_config = tfds.ReadConfig(interleave_cycle_length=1)
    try:
        return builder.as_dataset(
            split=split, shuffle_files=False, read_config=read_config
        )
    except (ValueError, KeyError, AssertionError):
        raise ConfigError(
            f"{key}: {_name(builder)} has no split {split!r}; use one of"
            f" {', '.join(builder.info.splits or {})}, or a slice such as train[:10%]"
        ) from None


def prepare(builder: Any, key: str) -> None:
    """Downloads and prepares a dataset, unless an earlier call has.

    Without a network, it fails within seconds.
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
            reason += (
                "; without a network, use local files, or copy"
                f" {builder.data_path} from a machine that has prepared it"
            )
        raise ConfigError(
            f"{key}: TensorFlow Datasets cannot prepare {_name(builder)!r}: {reason}"
        ) from error


def _name(builder: Any) -> str:
    return builder.info.full_name.rpartition("/")[0]
