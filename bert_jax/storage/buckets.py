"""Paths and URLs; buckets by fsspec: gs:// by gcsfs, s3:// by s3fs, and others.

Orbax writes checkpoints through etils.epath, which has the same libraries for buckets
unless TensorFlow is to be used. fsspec was chosen because it has one interface for both
kinds of buckets, ranged reads, and writes that fail if the object exists.
"""

import logging
import os
import re
from typing import Any

from bert_jax.errors import ConfigError

_ALIASES = {"gcs": "gs", "s3a": "s3"}  # so that an object has one URL
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(/*)(.*)", re.DOTALL)
PACKAGES = {"gs": "gcsfs", "gcs": "gcsfs", "s3": "s3fs"}
# HTTP statuses of errors that a later attempt may not have.
TRANSIENT_STATUSES = {408, 429, 500, 502, 503, 504}
STATUS_MESSAGES = {
    400: "the bucket rejects the request; check its name and the path",
    401: "no credentials; create them with gcloud auth application-default login",
    403: "permission denied; give this account access, or use another path",
    404: "there is no such file or bucket",
}
# Libraries whose other errors are those of connections.
_CLIENTS = ("aiohttp", "botocore", "requests", "urllib3")
# TensorStore has no exception types; its messages start with these.
_TENSORSTORE_STATUSES = {
    "UNAVAILABLE": 503,
    "ABORTED": 503,
    "DEADLINE_EXCEEDED": 504,
    "PERMISSION_DENIED": 403,
    "UNAUTHENTICATED": 401,
}


def is_remote(path: str) -> bool:
    """Returns whether a path is a URL."""
    return "://" in path


def file_system(path: str) -> Any:
    """Returns fsspec's file system of a URL; checks its package."""
    import fsspec
    import fsspec.config

    check_package(path)
    # Makes etils use fsspec although TensorFlow is installed. It reads the variable
    # when Orbax first uses a path, which is after the workdir is locked.
    os.environ["EPATH_USE_TF"] = "false"
    for name in PACKAGES:  # other processes write as well, so a listing gets outdated
        fsspec.config.conf.setdefault(name, {})["use_listings_cache"] = False
    for name in ("fsspec", "gcsfs"):  # they log the errors that they raise
        logging.getLogger(name).setLevel(logging.CRITICAL)
    return fsspec.filesystem(path.partition("://")[0])


def check_package(path: str) -> None:
    """Raises ConfigError if the scheme of a URL is unknown or lacks its package."""
    import fsspec

    scheme = path.partition("://")[0]
    if scheme in ("http", "https", "ftp"):
        raise ConfigError(f"{path} is not in a bucket; give one, or a local path")
    try:
        fsspec.get_filesystem_class(scheme)
    except ImportError:
        package = PACKAGES.get(scheme, f"fsspec[{scheme}]")
        raise ConfigError(
            f"{path}: {scheme}:// needs the package {package}; pip install {package}"
        ) from None
    except ValueError as error:
        raise ConfigError(
            f"{path}: {scheme}:// is not supported ({error}); use gs://, s3:// or a"
            " local path"
        ) from None


def parse_path(given_as: str, path: str) -> str:
    """Returns a path or URL with ~ expanded, gs:// for gcs://, and no slash at its end.

    An error names `given_as`, the flag or key.
    """
    if path != path.strip():
        problem = "has white space at its start or end; remove it"
    elif not path or re.search(r"[\x00-\x1f\x7f]", path):
        problem = "is not a path; give another one"
    elif (match := _SCHEME.fullmatch(path)) and (
        match[2] or match[1].lower() in PACKAGES
    ):
        return _parse_url(given_as, path, *match.groups())
    elif re.match(r"\$\{?\w", path):
        problem = (
            "starts with a variable that the shell has not replaced; use double quotes,"
            " or write its value"
        )
    elif (expanded := os.path.expanduser(path)).startswith("~"):
        problem = f"has no such user; write ./{path} for a directory of this name"
    else:
        return expanded.rstrip("/") or "/"
    raise ConfigError(f"{given_as}={path!r} {problem}")


def _parse_url(given_as: str, path: str, scheme: str, slashes: str, rest: str) -> str:
    bucket, *parts = rest.rstrip("/").split("/")
    if "@" in bucket and scheme.lower() != "hf":  # there, it is a revision
        raise ConfigError(  # without the URL, which may have a password
            f"{given_as} is a URL with a user name or password; remove them: they are"
            " found where the command-line tool of the bucket keeps them"
        )
    if len(slashes) < 2:
        raise ConfigError(
            f"{given_as}={path!r} is not a URL; write {scheme}://{rest}, or ./{path}"
            " for a local path"
        )
    if len(slashes) > 2 or not bucket or {"", ".", ".."}.intersection(parts):
        raise ConfigError(
            f"{given_as}={path!r} is not of the form {scheme}://BUCKET/DIRECTORY,"
            f" without //, . and .. in the directory, nor a local path without"
            f" {scheme}://"
        )
    scheme = scheme.lower()
    url = "/".join([f"{_ALIASES.get(scheme, scheme)}://{bucket}", *parts])
    try:
        check_package(url)
    except ConfigError as error:
        raise ConfigError(f"{given_as}={error}") from None
    return url


def status(error: BaseException) -> int | None:
    """Returns the HTTP status of an error of a bucket, None if it has none.

    Connections that fail count as 503.
    """
    module, name = type(error).__module__.partition(".")[0], type(error).__name__
    code = getattr(error, "code", None) or getattr(error, "status", None)
    if module in ("gcsfs", "aiohttp") and str(code).isdigit():
        return int(str(code))
    text = str(error)
    if module == "builtins" and text.startswith("Forbidden:"):  # of gcsfs
        return 403
    if module == "builtins" and text.startswith("Bad Request:"):
        return 400
    if getattr(error, "retryable", False):  # of google.auth, such as a slow server
        return 503
    if module == "google" or name in ("NoCredentialsError", "CredentialRetrievalError"):
        return 503 if name == "TransportError" else 401
    if module in _CLIENTS:
        return 503
    return _TENSORSTORE_STATUSES.get(text.partition(":")[0])


def message(error: BaseException) -> str | None:
    """Returns what is wrong with the user's URL or account, None if neither is."""
    if isinstance(error, FileNotFoundError):
        return STATUS_MESSAGES[404]
    if isinstance(error, PermissionError):  # of s3fs
        return STATUS_MESSAGES[403]
    return STATUS_MESSAGES.get(status(error) or 0)
