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

    try:
        yield
    except errors.OfflineModeIsEnabled:
        raise ConfigError(
            f"{what}: HF_HUB_OFFLINE is set; unset it to use the Hub"
        ) from None
    except errors.GatedRepoError:
        raise ConfigError(
            f"{what}: access is restricted; accept the conditions on its page, and"
            f" {_LOGIN}"
        ) from None
    except errors.RepositoryNotFoundError:
        raise ConfigError(
            f"{what} does not exist, or is private: check the name, or {_LOGIN}"
        ) from None
    except errors.RevisionNotFoundError:
        raise ConfigError(f"{what}: there is no such branch, tag or commit") from None
    except errors.LocalTokenNotFoundError:
        raise ConfigError(f"{what}: there is no token; {_LOGIN}") from None
    except (errors.HFValidationError, errors.HfUriError) as error:
        raise ConfigError(f"{what}: {first_line(error)}") from None
    except errors.HfHubHTTPError as error:
        raise _http_error(what, error) from None
    except (errors.EntryNotFoundError, FileNotFoundError):
        raise ConfigError(f"{what} does not exist") from None
    except httpx2.HTTPError as error:
        raise ConnectionError(f"{what}: {first_line(error)}") from None


def _http_error(what: str, error: Any) -> Exception:
    """Returns the error for an HTTP status, without its URL, which may be signed."""
    status = error.response.status_code
    if status == 429 or status >= 500:
        return ConnectionError(f"{what}: the Hub answers {status}")
    if status == 404:
        return ConfigError(f"{what} does not exist")
    reason = f"{status}: {error.server_message or error.response.reason_phrase}"
    if status == 401:
        return ConfigError(f"{what}: the token is not valid ({reason}); {_LOGIN}")
    if status == 403:
        return ConfigError(
            f"{what}: the token has no permission ({reason}); use one that has"
        )
    return ConfigError(f"{what}: the Hub answers {reason}")


def first_line(error: BaseException) -> str:
    return (str(error) or type(error).__name__).split("\n", 1)[0]
