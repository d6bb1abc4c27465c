"""The Hugging Face Hub, asked once: its library would try again for half a minute a file before it gives up."""

import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPException
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
    except (OSError, HTTPException, ValueError):  # an answer that is no HTTP, an HF_ENDPOINT that is no address
        return False


@contextmanager
def from_hub(what: str, advice: str) -> Iterator[None]:
    """Downloads of a library in this block. A Hub that does not answer is an error at once.

    What cannot be downloaded is a UserError: what, the reason, and the advice.
    """
    from huggingface_hub import constants

    if not constants.HF_HUB_OFFLINE and not answers(constants.ENDPOINT):
        cached = "if it was downloaded before, set HF_HUB_OFFLINE=1"
        raise UserError(f"cannot download {what}: {constants.ENDPOINT} does not answer; {cached}; else {advice}")
    try:
        yield
    except UserError:
        raise
    except OSError as error:  # requests' and huggingface_hub's among them
        raise UserError(f"cannot download {what}: {first_line(error).strip()[:300]}; {advice}") from error
