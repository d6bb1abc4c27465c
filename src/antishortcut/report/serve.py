"""The report on localhost: built anew when run folders change, which the open page learns when it asks."""

from __future__ import annotations

import os
import socket
import stat
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from antishortcut.errors import UserError, one_line
from antishortcut.report import Report, build

HOST = "127.0.0.1"
LOOK = 2.0  # seconds between looks at the folders
REST = 3.0  # seconds between two builds, and at least twice as long as a build took
MOST = 64  # connections at once; one more, and the oldest is dropped
KINDS = {".svg": "image/svg+xml", ".png": "image/png", ".md": "text/plain", ".tex": "text/plain"}
HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
FILE_POLICY = "default-src 'none'; style-src 'unsafe-inline'; sandbox; frame-ancestors 'none'"


@dataclass
class Show:
    """What the server shows, and the folder it comes from."""

    folder: Path
    columns: str | None = None
    sweep: str | None = None
    scatter: str | None = None
    page: bytes = b""
    policy: str = ""
    number: int = 0
    files: dict[str, Path] = field(default_factory=dict)  # below /, the only ones there are
    memory: dict[Any, Any] = field(default_factory=dict)
    seen: Any = None
    started: str = field(default_factory=lambda: f"{time.time_ns():x}")

    @property
    def edition(self) -> str:
        """Another after every build, and after every start of the server."""
        return f"{self.started}-{self.number}"

    def look(self) -> bool:
        """Build anew if a file that a report reads has changed; says whether it did."""
        now = _marks(self.folder)
        if now == self.seen:
            return False
        report = build(self.folder, self.columns, self.memory, sweep=self.sweep, scatter=self.scatter)
        self.seen = now  # of before the build: what changed meanwhile is seen the next time
        self._take(report)
        return True

    def _take(self, report: Report) -> None:
        from antishortcut.report.classes import class_tables
        from antishortcut.report.page import render
        from antishortcut.report.scenes import stills

        number = self.number + 1
        page, policy = render(report.found, report.table, report.drawn, live=f"{self.started}-{number}")
        names = [f"figures/{figure.name}.{end}" for figure in report.drawn.all() for end in ("svg", "png")]
        names += [f"figures/{name}.png" for name, *_ in stills(report.drawn.scenes)]
        names += ["classes.md"] * bool(class_tables(report.found))
        names += ["sweep.md"] * bool(self.sweep) + ["scatter.md"] * bool(self.scatter)
        self.files = {name: self.folder / name for name in ("table.md", "table.tex", *names)}
        self.page, self.policy = page.encode(errors="replace"), f"{policy}; frame-ancestors 'none'"
        self.number = number


def _marks(folder: Path) -> Any:
    """Names, times and sizes of all files that a report on this folder reads."""
    from antishortcut.report.collect import mark, places

    here = places(folder)
    homes = sorted({home for place in here for home in (place.resolve().parent.parent / "teachers").glob("*")})
    return [(place, mark(place)) for place in (*here, *homes)]


def serve(
    folder: Path,
    port: int,
    columns: str | None = None,
    ready: Callable[[str], None] = print,
    *,
    sweep: str | None = None,
    scatter: str | None = None,
) -> None:
    """Show the report until Ctrl-C. `ready` gets the address once the page is there; port 0 is any free one."""
    show = Show(folder, columns, sweep, scatter)
    show.look()
    try:
        server = _Server((HOST, port), show)
    except (OSError, OverflowError) as error:
        why = getattr(error, "strerror", None) or error
        raise UserError(f"--port {port}: {why}; choose another, or 0 for any free one") from None
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    ready(f"http://{HOST}:{server.server_address[1]}/")
    try:
        follow(show, lambda: True)
    except KeyboardInterrupt:
        pass
    finally:
        server.shutdown()
        server.server_close()


def follow(show: Show, going: Callable[[], bool], look: float = LOOK, rest: float = REST) -> None:
    """Look at the folders again and again. A build that fails leaves the page as it is, and is tried again."""
    pause = look
    while going():
        time.sleep(pause)
        pause, begin = look, time.monotonic()
        try:
            if show.look():
                pause = max(rest, 2 * (time.monotonic() - begin))
        except (UserError, OSError) as error:
            print(f"asd: {one_line(str(error))}", file=sys.stderr)
            pause = rest


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128  # those who dawdle fill a short one, and keep others waiting at the door

    def __init__(self, address: tuple[str, int], show: Show) -> None:
        super().__init__(address, _Handler)
        self.show = show
        self.open: dict[Any, None] = {}  # connections, the oldest first
        self.taking = threading.Lock()
        port = self.server_address[1]
        self.hosts = {f"{name}:{port}" for name in (HOST, "localhost")} | ({HOST, "localhost"} if port == 80 else set())

    def process_request(self, request: Any, client_address: Any) -> None:
        """A browser is done in a moment; whoever keeps a connection for long makes room for others."""
        with self.taking:
            self.open[request] = None
            oldest = next(iter(self.open)) if len(self.open) > MOST else None
            if oldest is not None:
                del self.open[oldest]
                with suppress(OSError):
                    oldest.shutdown(socket.SHUT_RDWR)  # its thread wakes, and closes it
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self.taking:
            self.open.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Somebody who hangs up before the answer is no news; a mistake of ours is."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    """GET and HEAD of the page, its news, and the files of the last build. Nothing else has a name here."""

    server: _Server
    server_version, sys_version = "asd", ""
    timeout = 10

    def do_GET(self) -> None:
        if self.headers.get("Host") not in self.server.hosts:  # a page elsewhere whose name now points here
            return self._answer(HTTPStatus.MISDIRECTED_REQUEST, b"another host\n")
        show = self.server.show
        path = self.path.partition("?")[0].removeprefix("/")
        if path in ("", "report.html"):
            return self._answer(HTTPStatus.OK, show.page, "text/html", show.policy)
        if path == "news":
            return self._answer(HTTPStatus.OK, b'{"edition": "%s"}' % show.edition.encode(), "application/json")
        content = _read(show.files[path]) if path in show.files else None
        if content is None:
            return self._answer(HTTPStatus.NOT_FOUND, b"not here\n")
        return self._answer(HTTPStatus.OK, content, KINDS[Path(path).suffix])

    do_HEAD = do_GET

    def _refuse(self) -> None:
        self._answer(HTTPStatus.METHOD_NOT_ALLOWED, b"GET and HEAD only\n")

    do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = do_TRACE = do_CONNECT = _refuse

    def _answer(self, status: HTTPStatus, content: bytes, kind: str = "text/plain", policy: str = FILE_POLICY) -> None:
        self.request_version = "HTTP/1.0"  # to 0.9, and to what is no request, the library would send no headers
        self.send_response(status)
        text = "" if kind == "image/png" else "; charset=utf-8"
        for name, value in {"Content-Type": kind + text, "Content-Security-Policy": policy, **HEADERS}.items():
            self.send_header(name, value)
        if status == HTTPStatus.METHOD_NOT_ALLOWED:
            self.send_header("Allow", "GET, HEAD")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Of requests that are none: the same headers as ever, and none of their words."""
        self.close_connection = True
        self._answer(HTTPStatus(code), HTTPStatus(code).phrase.encode() + b"\n")

    def log_message(self, format: str, *args: Any) -> None:
        """Requests are nobody's business."""


def _read(path: Path) -> bytes | None:
    """A file that lies where it says, not where a link of that name leads; None when it is gone."""
    if path.parent.is_symlink() and path.parent.name == "figures":
        return None
    try:
        with open(path, "rb", opener=_as_it_lies) as file:
            return file.read() if stat.S_ISREG(os.fstat(file.fileno()).st_mode) else None
    except OSError:
        return None


def _as_it_lies(path: str, flags: int) -> int:
    """No link is followed, nor is a pipe in a file's place waited for."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)
