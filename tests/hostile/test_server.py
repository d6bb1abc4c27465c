"""The server of a report against requests that are none, ask for too much, or never end. Over sockets, as they come."""

from __future__ import annotations

import os
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest

from antishortcut.report import serve
from antishortcut.report.serve import HOST, MOST, Show, _Server
from tests.browser.fake_runs import student

Served = tuple[Show, int]
OUTSIDE = (
    "/../secret.txt", "/..%2fsecret.txt", "/%2e%2e/secret.txt", "/%2e%2e%2fsecret.txt", "/%252e%252e/secret.txt",
    "/figures/../../secret.txt", "/figures/..%5c..%5csecret.txt", "/..\\secret.txt", "//secret.txt", "///etc/passwd",
    "/etc/passwd", "/figures//../../secret.txt", "/./../secret.txt", "/figures/link.svg", "/link/secret.txt",
    "/%00", "/table.md%00.png", "/table.md/", "/figures", "/figures/", "/figures/.", "/.", "/..", "/kd-s1/", "/kd-s1",
    "/kd-s1/run.json", "/.lock", "/report.html/../../secret.txt", "/table.md/../../secret.txt", "/~root", "/C:/x",
    "/" + "a" * 60_000, "/" + "../" * 2_000 + "secret.txt", "/" + "%2e%2e/" * 2_000 + "secret.txt", "http://evil.example/",
    "file:///etc/passwd", "*", "secret.txt", "/\udce9", "/?../../secret.txt#",
)  # fmt: skip


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A report that is served, a file beside its folder that is not, and links that lead there."""
    root = tmp_path_factory.mktemp("server")
    (root / "secret.txt").write_text("SECRET")
    suite = root / "P2"
    student(suite / "kd-s1", "kd", 1, 0.5)
    show = Show(suite)
    assert show.look()
    (suite / "figures" / "link.svg").symlink_to(root / "secret.txt")
    (suite / "link").symlink_to(root)
    server = _Server((HOST, 0), show)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield show, server.server_address[1]
    server.shutdown()
    server.server_close()


def raw(port: int, data: bytes, timeout: float = 20) -> bytes:
    """What comes back for these very bytes."""
    with socket.create_connection((HOST, port), timeout=timeout) as line:
        try:
            line.sendall(data)
            line.shutdown(socket.SHUT_WR)
            return b"".join(iter(lambda: line.recv(65536), b""))
        except OSError:  # it hung up before it had heard all of this
            return b""


def ask(port: int, path: str, method: str = "GET", host: str | None = None, more: str = "") -> bytes:
    line = f"{method} {path} HTTP/1.1\r\nHost: {host or f'{HOST}:{port}'}\r\n{more}Connection: close\r\n\r\n"
    return raw(port, line.encode("utf-8", "surrogateescape"))


def test_it_listens_to_this_machine_alone(served: Served) -> None:
    assert HOST == "127.0.0.1"
    server = _Server((serve.HOST, 0), served[0])
    assert server.socket.getsockname()[0] == "127.0.0.1"
    server.server_close()


@pytest.mark.parametrize("path", OUTSIDE, ids=lambda path: path[:40].encode(errors="replace").decode())
def test_no_name_leads_outside(served: Served, path: str) -> None:
    answer = ask(served[1], path)
    assert b"SECRET" not in answer
    assert b"root:x:" not in answer
    assert b"<html" not in answer or path.startswith("/?")  # what follows a question mark says nothing
    assert answer.split(b" ", 2)[1] in (b"404", b"400", b"414") or path.startswith("/?")


@pytest.mark.parametrize("path", ["/", "/table.md", "/figures/scores.svg", "/news", "/nowhere", "/" + "a" * 70_000])
@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "FOO", "CONNECT"])
def test_every_answer_has_a_strict_policy(served: Served, method: str, path: str) -> None:
    head = ask(served[1], path, method).partition(b"\r\n\r\n")[0].decode()
    if not head:
        pytest.skip("it hung up")
    policy = next(line for line in head.splitlines() if line.lower().startswith("content-security-policy"))
    assert "default-src 'none'" in policy
    assert "unsafe-eval" not in policy
    assert "script-src 'unsafe-inline'" not in policy
    assert "frame-ancestors 'none'" in policy
    assert "X-Content-Type-Options: nosniff" in head
    assert "Python" not in head
    if method not in ("GET", "HEAD"):
        assert head.split(" ")[1] in ("405", "501", "414")


@pytest.mark.parametrize("line", ["GET / HTTP/0.9", "GET /", "GET / HTTP/2.0", "GET / HTTP/x", "POST /", "?"])
def test_answers_to_old_and_broken_requests_have_it_too(served: Served, line: str) -> None:
    answer = raw(served[1], f"{line}\r\nHost: {HOST}:{served[1]}\r\n\r\n".encode())
    assert b"Content-Security-Policy: default-src 'none'" in answer.partition(b"\r\n\r\n")[0]


@pytest.mark.parametrize(
    "host",
    ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example:80", "0.0.0.0", "[::1]", "127.1", "", "@"],
)
def test_a_name_that_was_made_to_point_here_gets_nothing(served: Served, host: str) -> None:
    answer = ask(served[1], "/", host=host or " ")
    assert answer.split(b" ", 2)[1] in (b"421", b"400")
    assert b"<html" not in answer


def test_nobody_without_a_name_gets_anything(served: Served) -> None:
    for data in (b"GET / HTTP/1.0\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n"):
        assert b"<html" not in raw(served[1], data)
    assert b"<html" not in raw(served[1], b"GET /\r\n")


REQUESTS = {
    "nothing": b"",
    "a line that never ends": b"GET /" + b"a" * 300_000,
    "many headers": b"GET / HTTP/1.1\r\n" + b"".join(b"X-%d: y\r\n" % at for at in range(500)) + b"\r\n",
    "a long header": b"GET / HTTP/1.1\r\nHost: " + b"a" * 200_000 + b"\r\n\r\n",
    "zeros": b"\0" * 5_000,
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\xaa" * 500,
    "another protocol": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "a version that is none": b"GET / HTTP/99999999999999999999.9\r\n\r\n",
    "two requests in one": b"GET /nowhere HTTP/1.1\r\nHost: x\r\n\r\nGET / HTTP/1.1\r\n\r\n",
    "a body that is said to be long": b"POST / HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\nx",
    "chunks": b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nfffffffff\r\n",
    "a line break in a header": b"GET / HTTP/1.1\r\nHost: a\r\n b\r\n\tc\r\n\r\n",
    "letters of no alphabet": bytes(range(256)) * 20,
}


@pytest.mark.parametrize("request_", REQUESTS)
def test_what_is_no_request_ends_quickly_and_says_nothing(
    served: Served, request_: str, capfd: pytest.CaptureFixture[str]
) -> None:
    begin = time.monotonic()
    answer = raw(served[1], REQUESTS[request_])
    assert time.monotonic() - begin < 9
    assert b"<html" not in answer
    assert b"Traceback" not in answer
    assert b"SECRET" not in answer
    assert b" 200 " in ask(served[1], "/news")[:20]  # and others are served
    assert "Traceback" not in capfd.readouterr().err


def test_those_who_dawdle_hold_up_nobody(served: Served) -> None:
    """Forty connections that send a letter and wait; the page comes as fast as ever."""
    lines = [socket.create_connection((HOST, served[1]), timeout=20) for _ in range(40)]
    try:
        for line in lines:
            line.sendall(b"GET / HT")
        for _ in range(3):
            begin = time.monotonic()
            assert b"<html" in ask(served[1], "/")
            assert time.monotonic() - begin < 5
            for line in lines[:5]:
                line.sendall(b"x")
    finally:
        for line in lines:
            line.close()


def test_connections_do_not_pile_up(served: Served) -> None:
    """Each of 200 sends a letter now and then, so that no wait is ever too long: the oldest are dropped."""
    before = threading.active_count()
    lines = [socket.create_connection((HOST, served[1]), timeout=20) for _ in range(200)]
    try:
        assert b"<html" in ask(served[1], "/")
        end = time.monotonic() + 15
        while threading.active_count() > before + MOST + 1 and time.monotonic() < end:
            for line in lines:
                with suppress(OSError):  # of one that was dropped already
                    line.sendall(b"G")
            time.sleep(0.05)
        assert threading.active_count() <= before + MOST + 1
        assert lines[0].recv(1) == b""
    finally:
        for line in lines:
            line.close()


def test_who_hangs_up_early_is_no_news(served: Served, capfd: pytest.CaptureFixture[str]) -> None:
    show, port = served
    page, show.page = show.page, b"x" * 20_000_000  # more than the sockets between hold
    try:
        with socket.create_connection((HOST, port), timeout=20) as line:
            line.sendall(f"GET / HTTP/1.1\r\nHost: {HOST}:{port}\r\n\r\n".encode())
            line.recv(10)
            line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        time.sleep(0.5)
    finally:
        show.page = page
    assert b" 200 " in ask(port, "/news")[:20]
    assert capfd.readouterr().err == ""


def test_a_pipe_or_a_folder_in_place_of_a_file_is_not_here(served: Served) -> None:
    show, port = served
    for name, make in (("table.tex", os.mkfifo), ("table.md", os.mkdir)):
        path = show.folder / name
        kept = path.read_bytes()
        path.unlink()
        make(path)
        begin = time.monotonic()
        assert ask(port, f"/{name}").split(b" ", 2)[1] == b"404"
        assert time.monotonic() - begin < 5
        path.rmdir() if path.is_dir() else path.unlink()
        path.write_bytes(kept)
    assert b" 200 " in ask(port, "/table.md")[:20]
