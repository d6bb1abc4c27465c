"""UserError, the exception for bad input, and how text from files is shown at a terminal."""

import errno
import unicodedata
from collections.abc import Iterable, Sequence
from difflib import get_close_matches

LONGEST = 2_000  # characters of an error, which may quote a file

RIGHTS = "change who may read and write it, or name another place"
ROOM = "make room there, then give the same command again"
REMEDIES = {
    errno.EACCES: RIGHTS,
    errno.EPERM: RIGHTS,
    errno.EROFS: "name another place, or have its disk mounted for writing",
    errno.ENOSPC: ROOM,
    errno.EDQUOT: ROOM,
    errno.EEXIST: "a file stands where a folder should be",
    errno.ENOTDIR: "a file stands where a folder should be",
    errno.EMFILE: "raise the number of open files (ulimit -n)",
}


class UserError(ValueError):
    """Bad input: what was wrong, where, and what to do, in one line. The command prints it and exits with 2."""

    def __init__(self, text: object = "") -> None:
        super().__init__(one_line(str(text)))


def printable(text: str) -> str:
    """Text with control characters escaped, which would move a terminal's cursor or reverse a line."""
    steering = [c for c in set(text) if c != "\n" and not c.isprintable() and unicodedata.category(c) != "Zs"]
    return text.translate({ord(c): c.encode("unicode_escape").decode() for c in steering})


def one_line(text: str) -> str:
    """The same in one line, with its middle left out where it is very long."""
    line = printable(" ".join(text.split()))
    return line if len(line) <= LONGEST else f"{line[: LONGEST - 503]} … {line[-500:]}"


def short_repr(value: object) -> str:
    """The repr of a refused value, cut to fit a line."""
    try:
        text = repr(value)
    except (RecursionError, ValueError):  # nested thousands deep, or a number of thousands of digits
        return f"a {type(value).__name__}"
    return text if len(text) <= 200 else f"{text[:200]}…"


def first_line(error: BaseException) -> str:
    """The first line of an error's message, or its type if there is none."""
    return next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)


def of_disk(error: OSError) -> str:
    """An OSError in one line: the file, the reason, what to do."""
    if error.filename is None or error.strerror is None:
        return one_line(str(error))
    remedy = REMEDIES.get(error.errno or 0)
    return one_line(f"{error.filename}: {error.strerror}{f'; {remedy}' if remedy else ''}")


def plural(number: int, thing: str) -> str:
    """1 epoch, 1,000 epochs, 10 classes."""
    ending = "" if number == 1 else "es" if thing.endswith("s") else "s"
    return f"{number:,} {thing}{ending}"


def first_names(names: Sequence[str]) -> str:
    """ant, bee, cat and 7 more."""
    return ", ".join(names[:3]) + (f" and {len(names) - 3:,} more" if len(names) > 3 else "")


def suggest(word: str, known: Iterable[str], otherwise: str | None = None) -> str:
    """A hint that names the known words nearest to a mistyped one; if none is near, all of them, or `otherwise`."""
    words = list(known)
    close = get_close_matches(word, words, n=3, cutoff=0.5)
    if close:
        return f"; did you mean {' or '.join(map(repr, close))}?"
    return f"; known: {', '.join(words)}" if otherwise is None else otherwise
