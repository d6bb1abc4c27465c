"""Stop signals: Ctrl-C, SIGTERM, and what schedulers send as a warning. The exit code is 128 + the signal's number.

SIGHUP is a terminal that closes; SIGUSR1 and SIGUSR2 are what Slurm (--signal) and Grid Engine (-notify) are told to
send before the time is up; SIGXCPU is a limit of processor time. A training finishes its step and saves
(`stop_signals`), other work is interrupted (`interruptible`), and an import ends with its process (`exit_at_once`).
"""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

NAMES = ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGXCPU")
STOPS = tuple(getattr(signal, name) for name in NAMES if hasattr(signal, name))
AGAIN = 1.0  # seconds within which signals are one: a scheduler may send it to every process, and they pass it on


class StopRequest:
    """Which signal came, 0 for none, and when."""

    number = 0
    at = 0.0


class Interrupted(KeyboardInterrupt):
    """A stop signal came where nothing needs saving."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.code = 128 + number


class Stopped(Exception):
    """The run was told to stop, by Ctrl-C or by a scheduler. Its state is saved."""

    def __init__(self, number: int, step: int) -> None:
        super().__init__(f"stopped after step {step}; the same command goes on from there")
        self.code = 128 + number


@contextmanager
def handled(handler: Callable[[int, Any], None]) -> Iterator[None]:
    """Install a handler for all stop signals; a hang-up that is ignored (nohup) stays so.

    Only the main thread may: a training in another one is stopped by its process.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    ignored = [number for number in STOPS if number == signal.SIGHUP and signal.getsignal(number) == signal.SIG_IGN]
    before = {number: signal.signal(number, handler) for number in STOPS if number not in ignored}
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)


@contextmanager
def stop_signals() -> Iterator[StopRequest]:
    """A signal asks the loop to stop after the step at hand; asked again a while later, it stops at once."""
    request = StopRequest()

    def handler(number: int, frame: object) -> None:
        if not request.number:
            request.number, request.at = number, time.monotonic()
        elif time.monotonic() - request.at > AGAIN:
            raise KeyboardInterrupt

    with handled(handler):
        yield request


def exit_at_once(number: int, frame: object) -> None:
    """Inside an import an exception may be swallowed, or end torch with an abort; nothing is written yet."""
    os._exit(128 + number)


@contextmanager
def interruptible(request: StopRequest) -> Iterator[None]:
    """A stop signal is an exception, so that half-written files are removed; during an import it ends the process."""

    def handler(number: int, frame: FrameType | None) -> None:
        while frame is not None:
            if frame.f_code.co_filename.startswith("<frozen importlib"):
                exit_at_once(number, frame)
            frame = frame.f_back
        request.number = number
        raise Interrupted(number)

    with handled(handler):
        yield


def stopped_by(number: int) -> str:
    return f"stopped by {signal.Signals(number).name}; finished work is saved"


def stop_signal_of(code: int) -> int:
    """The signal that stopped a process, from its exit code (minus the number, or 128 + number); 0 for none."""
    number = -code if code < 0 else code - 128
    return number if number in STOPS else 0
