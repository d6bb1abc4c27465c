"""The Hugging Face Hub, asked once: its library would try again for half a minute a file before it gives up."""

import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from antishortcut.errors import UserError, first_line

PATIENCE = 5.0  # seconds for the first answer


def answers(address: str) -> bool:
    """Whether a server answers at all, through the proxies of the environment."""
    try:
        with urlopen(Request(address, method="HEAD"), timeout=PATIENCE):
            return True
    except HTTPError:  # an answer too
        return True
    except URLError as error:
        return isinstance(error.reason, ssl.SSLError)  # the Hub's library brings certificates of its own
    except OSError:
        return False


@contextmanager
def from_hub(what: str, advice: str) -> Iterator[None]:
    """Downloads of a library in this block come from its cache alone if the Hub does not answer.

    What cannot be downloaded is a UserError: what, the reason, and the advice.
    """
    from huggingface_hub import constants

    offline = constants.HF_HUB_OFFLINE
    online = offline or answers(constants.ENDPOINT)
    constants.HF_HUB_OFFLINE = offline or not online
    try:
        yield
    except UserError:
        raise
    except OSError as error:  # requests' and huggingface_hub's among them
        reason = first_line(error).strip()[:300] if online else f"{constants.ENDPOINT} does not answer"
        raise UserError(f"cannot download {what}: {reason}; {advice}") from error
    finally:
        constants.HF_HUB_OFFLINE = offline
