"""Files on a web server, read in parts: HTTP Range requests, by the standard library alone."""

import io
import time
from email.utils import parsedate_to_datetime
from http.client import HTTPException
from typing import NamedTuple
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from antishortcut.errors import UserError, first_line

TRIES, WAIT = 5, 0.5  # how often a request is made; seconds after the first failure, then twice as long each time
TIMEOUT = 30.0  # seconds
BUFFER = 2**13  # bytes: between two images of a shard lie a label and headers


class Part(NamedTuple):
    """Some bytes of a file."""

    data: bytes
    total: int  # bytes of the whole file
    time: int  # when it was modified, in nanoseconds; 0 if the server does not say


def fetch(url: str, start: int, size: int) -> Part:
    """The bytes from `start` on, at most `size`. A server that fails for a moment is asked again."""
    request = Request(url, headers={"Range": f"bytes={start}-{start + size - 1}"})
    for attempt in range(TRIES):
        if attempt:
            time.sleep(WAIT * 2 ** (attempt - 1))
        try:
            with urlopen(request, timeout=TIMEOUT) as answer:
                if answer.status != 206:
                    raise UserError(f"the server of {url} sends whole files only (no Range requests); download it")
                total = int(answer.headers["Content-Range"].rpartition("/")[2])
                data = answer.read(size)
                if len(data) != min(size, total - start):
                    raise URLError("the answer is cut short")
                changed = answer.headers["Last-Modified"]
                return Part(data, total, int(parsedate_to_datetime(changed).timestamp() * 1e9) if changed else 0)
        except HTTPError as error:
            reason = f"{error.code} {error.reason}"
            if error.code < 500 and error.code != 429:  # 429: too many requests
                break
        except (OSError, HTTPException) as error:
            reason = first_line(error)
        except (TypeError, AttributeError, ValueError) as error:  # headers that are missing or no numbers
            if isinstance(error, UserError):
                raise
            reason = "its answer is not one to a Range request"
            break
    raise UserError(f"cannot read {url} ({reason}); check the address and the network")


class RemoteFile(io.RawIOBase):
    """A file on a web server that can be read at any place."""

    def __init__(self, url: str, size: int) -> None:
        self.url, self.size, self.at = url, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self.at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self.at, io.SEEK_END: self.size}[whence]
        return self.at

    def tell(self) -> int:
        return self.at

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        size = min(len(buffer), self.size - self.at)
        if size <= 0:
            return 0
        buffer[:size] = fetch(self.url, self.at, size).data
        self.at += size
        return size
