"""Curves for TensorBoard, written without a thread of its own. A disk that fails ends the curves, not the run."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

EVERY = 60.0  # seconds that numbers may wait before they are on the disk


class Board:
    """One file of events; numbers from `step` on replace those of an earlier start."""

    def __init__(self, folder: Path, step: int) -> None:
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from tensorboard.summary.writer.record_writer import RecordWriter

        self._event, self._flushed = Event, time.monotonic()
        self._records: Any = None
        name = f"events.out.tfevents.{int(time.time())}.{socket.gethostname()}.{os.getpid()}.0"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._file = (folder / name).open("ab")
        except OSError:
            return
        self._records = RecordWriter(self._file)
        self._write(Event(wall_time=time.time(), file_version="brain.Event:2"))
        if step:
            log = SessionLog(status=SessionLog.START)
            self._write(Event(wall_time=time.time(), step=step + 1, session_log=log))

    def add(self, numbers: Mapping[str, float], step: int) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary

        values = [Summary.Value(tag=name, simple_value=float(value)) for name, value in numbers.items()]
        self._write(self._event(wall_time=time.time(), step=step, summary=Summary(value=values)))

    def _write(self, event: Any) -> None:
        if self._records is None:
            return
        try:
            self._records.write(event.SerializeToString())
            if time.monotonic() - self._flushed > EVERY:
                self._flushed = time.monotonic()
                self._file.flush()
        except OSError:
            self.close()

    def close(self) -> None:
        if self._records is not None:
            self._records = None
            with suppress(OSError):
                self._file.close()
