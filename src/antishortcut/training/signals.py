"""Signals that ask for an end: Ctrl-C, SIGTERM, and what schedulers send as a warning. Heard and not obeyed at once.

SIGHUP is a terminal that closes; SIGUSR1 and SIGUSR2 are what Slurm (--signal) and Grid Engine (-notify) are told to
send before the time is up; SIGXCPU is a limit of processor time. All mean: save and stop, with exit code 128 + number.
"""

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

NAMES = ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGXCPU")
STOPS = tuple(getattr(signal, name) for name in NAMES if hasattr(signal, name))
AGAIN = 1.0  # seconds within which signals are one: a scheduler may send it to every process, and they pass it on


class StopRequest:
    """Which signal came, 0 for none, and when."""

    number = 0
    at = 0.0


class Ended(KeyboardInterrupt):
    """A signal other than Ctrl-C came where nothing needs saving."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.code = 128 + number


class Stopped(Exception):
    """The run was told to stop, by Ctrl-C or by a scheduler. Its state is saved."""

    def __init__(self, number: int, step: int) -> None:
        super().__init__(f"stopped after step {step}; the same command goes on from there")
        self.code = 128 + number


@contextmanager
def handled(note: Callable[[int, Any], None], numbers: tuple[int, ...] = STOPS) -> Iterator[None]:
    """With this handler; a hang-up that is ignored (nohup) stays so."""
    ignored = [number for number in numbers if number == signal.SIGHUP and signal.getsignal(number) == signal.SIG_IGN]
    before = {number: signal.signal(number, note) for number in numbers if number not in ignored}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def stop_signals() -> Iterator[StopRequest]:
    """A signal asks the loop to stop after the step at hand; asked again a while later, it stops at once."""
    heard = StopRequest()

    def note(number: int, frame: object) -> None:
        if not heard.number:
            heard.number, heard.at = number, time.monotonic()
        elif time.monotonic() - heard.at > AGAIN:
            raise KeyboardInterrupt

    with handled(note):
        yield heard


@contextmanager
def ending(heard: StopRequest) -> Iterator[None]:
    """What is not a training ends at once, but in order: files half written are removed, children are told."""

    def note(number: int, frame: object) -> None:
        heard.number = number
        raise Ended(number)

    with handled(note, tuple(number for number in STOPS if number != signal.SIGINT)):
        yield


def stopped_by(number: int) -> str:
    return f"stopped by {signal.Signals(number).name}; finished work is saved"


def stop_signal_of(code: int) -> int:
    """The signal that stopped a process, from its exit code (minus the number, or 128 + number); 0 for none."""
    number = -code if code < 0 else code - 128
    return number if number in STOPS else 0
