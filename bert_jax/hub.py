"""Files on the Hugging Face Hub, and the errors of its library in one line.

A URL is hf://datasets/OWNER/NAME@COMMIT/PATH. The library finds the token itself: in
HF_TOKEN, or where `hf auth login` stores it. bert_jax neither reads nor stores it.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

from bert_jax.errors import ConfigError

SCHEME = "hf://"
_LOGIN = "log in with: hf auth login"


@contextlib.contextmanager
def raise_errors(what: str) -> Iterator[None]:
    """Converts the errors of huggingface_hub to ConfigError, for `what` a user gave.

    Raises:
      ConnectionError: when the Hub does not answer, or answers that it cannot now.
    """
    import httpx2  # of huggingface_hub
    from huggingface_hub import errors

    meanings = {
        errors.OfflineModeIsEnabled: ": HF_HUB_OFFLINE is set; unset it to use the Hub",
        errors.GatedRepoError: (
            f": access is restricted; accept the conditions on its page, and {_LOGIN}"
        ),
        errors.RepositoryNotFoundError: (
            f" does not exist, or is private: check the name, or {_LOGIN}"
        ),
        errors.RevisionNotFoundError: ": there is no such branch, tag or commit",
        errors.LocalTokenNotFoundError: f": there is no token; {_LOGIN}",
        errors.EntryNotFoundError: " does not exist",
        FileNotFoundError: " does not exist",
    }
    try:
        yield
    except tuple(meanings) as error:
        meaning = next(meanings[x] for x in meanings if isinstance(error, x))
        raise ConfigError(f"{what}{meaning}") from None
    except (errors.HFValidationError, errors.HfUriError) as error:
        raise ConfigError(f"{what}: {first_line(error)}") from None
    except errors.HfHubHTTPError as error:
        raise _http_error(what, error) from None
    except httpx2.HTTPError as error:
        raise ConnectionError(f"{what}: {first_line(error)}") from None


def _http_error(what: str, error: Any) -> Exception:
    """Returns the error for an HTTP status, without its URL, which may be signed."""
    status = error.response.status_code
    if status == 429 or status >= 500:
        return ConnectionError(f"{what}: the Hub answers {status}")
    if status == 404:
        return ConfigError(f"{what} does not exist")
    remedy = {
        401: f"; the token is not valid, {_LOGIN}",
        403: "; the token has no permission, use one that has",
    }
    reason = f"{status}: {error.server_message or error.response.reason_phrase}"
    return ConfigError(f"{what}: the Hub answers {reason}{remedy.get(status, '')}")


def first_line(error: BaseException) -> str:
    return (str(error) or type(error).__name__).split("\n", 1)[0]
