"""Checks the paths that users write in flags and config keys."""

import os
import re

from bert_jax.errors import ConfigError
from bert_jax.storage import buckets

_ALIASES = {"gcs": "gs", "s3a": "s3"}  # so that an object has one URL
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(/*)(.*)", re.DOTALL)


def parse_path(given_as: str, path: str) -> str:
    """Returns a path with ~ expanded, gs:// for gcs://, and no slash at its end.

    Args:
      given_as: the flag or key that has the path, for error messages.
      path: a local path, or a URL.

    Raises:
      ConfigError: when it is neither, there is no such user as in ~user, or the package
        for the URL is not installed.
    """
    where = f"{given_as}={path!r}"
    if path != path.strip():
        raise ConfigError(f"{where} has white space at its start or end; remove it")
    if not path or re.search(r"[\x00-\x1f\x7f]", path):
        raise ConfigError(f"{where} is not a path; give another one")
    match = _SCHEME.fullmatch(path)
    if match and (match[2] or match[1].lower() in buckets.PACKAGES):
        return _parse_url(given_as, path, *match.groups())
    if re.match(r"\$\{?\w", path):
        raise ConfigError(
            f"{where} starts with a variable that the shell has not replaced; use"
            " double quotes, or write its value"
        )
    expanded = os.path.expanduser(path)
    if expanded.startswith("~"):
        raise ConfigError(
            f"{where}: there is no such user; write ./{path} for a directory of this"
            " name"
        )
    return expanded.rstrip("/") or "/"


def _parse_url(given_as: str, path: str, scheme: str, slashes: str, rest: str) -> str:
    where = f"{given_as}={path!r}"
    if len(slashes) < 2:
        raise ConfigError(
            f"{where} is not a URL; write {scheme}://{rest}, or ./{path} for a local"
            " path"
        )
    bucket, *parts = rest.rstrip("/").split("/")
    if len(slashes) > 2 or not bucket:
        raise ConfigError(
            f"{where} has no bucket; write {scheme}://BUCKET/DIRECTORY, or a local path"
            f" without {scheme}://"
        )
    if "@" in bucket and scheme.lower() != "hf":  # there, it is a revision
        raise ConfigError(  # without the URL, which may have a password
            f"{given_as} is a URL with a user name or password; remove them: they are"
            " found where the command-line tool of the bucket keeps them"
        )
    if wrong := {"", ".", ".."}.intersection(parts):
        raise ConfigError(
            f"{where} has {wrong.pop()!r} between two slashes, which a bucket takes for"
            " a name; remove it"
        )
    scheme = scheme.lower()
    url = "/".join([f"{_ALIASES.get(scheme, scheme)}://{bucket}", *parts])
    try:
        buckets.check_package(url)
    except ConfigError as error:
        raise ConfigError(f"{given_as}={error}") from None
    return url
