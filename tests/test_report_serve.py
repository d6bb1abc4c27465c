"""The report on localhost: what it answers, what it refuses, how it follows the runs, how it ends."""

from __future__ import annotations

import http.client
import json
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from antishortcut.errors import UserError
from antishortcut.report.serve import HOST, Show, _Server, follow, serve
from tests.browser.fake_runs import student, unfinished

Served = tuple[Show, int]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server on a free port, and what it shows."""
    root = tmp_path_factory.mktemp("served") / "P2"
    student(root / "kd-s1", "kd", 1, 0.5)
    show = Show(root)
    assert show.look()
    server = _Server((HOST, 0), show)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield show, server.server_address[1]
    server.shutdown()
    server.server_close()


def ask(
    port: int, path: str, method: str = "GET", host: str | None = None
) -> tuple[int, http.client.HTTPMessage, bytes]:
    """The path goes out as it stands: no client tidies the dots away."""
    connection = http.client.HTTPConnection(HOST, port, timeout=10)
    connection.putrequest(method, path, skip_host=True)
    connection.putheader("Host", host or f"{HOST}:{port}")
    connection.endheaders()
    answer = connection.getresponse()
    return answer.status, answer.headers, answer.read()


def test_the_page_and_its_files(served: Served) -> None:
    show, port = served
    status, headers, page = ask(port, "/")
    assert (status, page) == (200, show.page)
    policy = headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "connect-src 'self'" in policy
    assert "unsafe-eval" not in policy
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Content-Type"] == "text/html; charset=utf-8"
    assert "Python" not in (headers["Server"] or "")
    assert f'data-edition="{show.edition}"' in page.decode()
    kinds = {"/figures/scores.svg": "image/svg+xml", "/figures/scores.png": "image/png", "/table.md": "text/plain"}
    for path, kind in kinds.items():
        status, headers, content = ask(port, path)
        assert status == 200
        assert headers["Content-Type"].startswith(kind)
        assert "sandbox" in headers["Content-Security-Policy"]
        assert content == (show.folder / path[1:]).read_bytes()
    assert ask(port, "/table.tex?x=1")[0] == 200
    status, headers, content = ask(port, "/", "HEAD")
    assert (status, headers["Content-Length"], content) == (200, str(len(page)), b"")


def test_the_written_page_asks_nothing(served: Served) -> None:
    offline = (served[0].folder / "report.html").read_text()
    assert "data-edition" not in offline.partition("<script")[0]
    assert "connect-src" not in offline.partition("<script")[0]
    assert 'fetch("news"' not in offline


@pytest.mark.parametrize(
    "path",
    [
        "/../../etc/passwd", "/figures/../../../etc/passwd", "/figures/%2e%2e/table.md", "//etc/passwd", "/figures/",
        "/kd-s1/run.json", "/report.html/", "/figures/secret.svg", "/figures\\scores.svg", "/.", "/%00", "etc/passwd",
    ],
)  # fmt: skip
def test_nothing_else_has_a_name(served: Served, path: str) -> None:
    (served[0].folder / "figures" / "secret.svg").write_text("not of this report")
    status, _, content = ask(served[1], path)
    assert status == 404
    assert content == b"not here\n"


def test_links_are_not_followed(served: Served, tmp_path: Path) -> None:
    show, port = served
    secret = tmp_path / "secret"
    secret.write_text("secret")
    figure = show.folder / "figures" / "losses.svg"
    kept = figure.read_bytes()
    figure.unlink()
    figure.symlink_to(secret)
    try:
        assert ask(port, "/figures/losses.svg")[0] == 404
        figures = show.folder / "figures"
        figures.rename(show.folder / "moved")
        figures.symlink_to(show.folder / "moved")
        assert ask(port, "/figures/scores.svg")[0] == 404
        figures.unlink()
        (show.folder / "moved").rename(figures)
    finally:
        figure.unlink()
        figure.write_bytes(kept)
    assert ask(port, "/figures/losses.svg")[0] == 200


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1", "localhost:1", "[::1]:80", ""])
def test_only_its_own_name_is_answered(served: Served, host: str) -> None:
    status, _, content = ask(served[1], "/", host=host or " ")
    assert status in (400, 421)
    assert b"<html" not in content


def test_localhost_is_its_name_too(served: Served) -> None:
    assert ask(served[1], "/news", host=f"localhost:{served[1]}")[0] == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"])
def test_only_reading(served: Served, method: str) -> None:
    status, headers, _ = ask(served[1], "/", method)
    assert (status, headers["Allow"]) == (405, "GET, HEAD")


def test_it_follows_the_runs(tmp_path: Path) -> None:
    root = tmp_path / "P2"
    student(root / "kd-s1", "kd", 1, 0.5)
    show = Show(root)
    show.look()
    first = show.edition
    assert not show.look()  # the report it wrote itself is no news
    running = unfinished(root / "crd-s1", epoch=2)
    assert show.look()
    assert show.edition != first
    assert "2 of 12" in show.page.decode()
    running.log({"step": 3, "epoch": 3.0, "set": "iid", "scores": {"accuracy": 0.75}})
    assert show.look()
    assert "3 of 12" in show.page.decode()
    assert "0.750" in show.page.decode()
    running.finish({"set": "iid", "last": {"accuracy": 0.8}, "best": {"accuracy": 0.8}})
    assert show.look()
    assert "In progress" not in show.page.decode()
    artifacts = root.parent / "teachers" / "a" / "artifacts"
    artifacts.mkdir(parents=True)
    (artifacts / "directions-15.json").write_text("{}")
    assert show.look()


def test_a_build_that_fails_leaves_the_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = tmp_path / "P2"
    run = student(root / "kd-s1", "kd", 1, 0.5).path
    show = Show(root)
    show.look()
    page = show.page
    run.rename(tmp_path / "away")
    turns = iter((True, True, False))
    follow(show, lambda: next(turns), look=0, rest=0)
    assert show.page == page
    assert "no run folder" in capsys.readouterr().err
    (tmp_path / "away").rename(run)
    student(root / "asd-s1", "asd", 1, 0.6)
    turns = iter((True, False))
    follow(show, lambda: next(turns), look=0, rest=0)
    assert show.page != page


def test_a_port_in_use_is_one_line(tmp_path: Path) -> None:
    student(tmp_path / "kd-s1", "kd", 1, 0.5)
    with socket.socket() as other:
        other.bind((HOST, 0))
        other.listen()
        with pytest.raises(UserError, match="choose another, or 0 for any free one"):
            serve(tmp_path, other.getsockname()[1])


def test_ctrl_c_ends_it(tmp_path: Path) -> None:
    student(tmp_path / "kd-s1", "kd", 1, 0.5)
    command = [sys.executable, "-m", "antishortcut", "report", str(tmp_path), "--serve", "--port", "0"]
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    # a shell that starts tests in the background has them ignore Ctrl-C, and what they start too
    with subprocess.Popen(command, **pipes, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)) as process:
        assert process.stdout is not None
        address = process.stdout.readline().split()[0]
        port = int(address.rstrip("/").rpartition(":")[2])
        assert json.loads(ask(port, "/news")[2])["edition"].endswith("-1")
        with socket.create_connection((HOST, port)):  # a client that only listens holds nothing up
            time.sleep(0.1)
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=30)
    assert process.returncode == 0
    assert errors == ""
