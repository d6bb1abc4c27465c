"""The Hub is asked once: without a network, one line."""

from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest
from huggingface_hub import constants

from antishortcut import load
from antishortcut.errors import UserError
from antishortcut.models import build, downloads
from antishortcut.models.downloads import answers, from_hub

CLOSED = "http://127.0.0.1:9"  # nobody listens there


@pytest.fixture
def server() -> Iterator[str]:
    """It knows no page, and says so."""
    server = HTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler)
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()


def test_a_refusal_is_an_answer(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "*")
    assert answers(server)
    assert not answers(CLOSED)
    assert not answers("hf-mirror.example")  # no address


def test_without_a_network_weights_are_asked_for_once(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setattr(constants, "ENDPOINT", CLOSED)
    hint = f"{CLOSED} does not answer; if it was downloaded before, set HF_HUB_OFFLINE=1; else"
    with pytest.raises(UserError, match=f"^cannot download the weights of timm:test_vit: {hint} start without: --no-"):
        build("timm:test_vit", 3, image_size=32, pretrained=True)
    with pytest.raises(UserError, match=f"^cannot download a/b from the Hub: {hint} check"):
        load("hf://a/b")
    assert "Retry" not in "".join(capfd.readouterr())


def test_a_download_leaves_the_hubs_library_as_it_is(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setattr(constants, "ENDPOINT", server)
    before = dict(vars(constants))
    with from_hub("nothing", ""):
        assert dict(vars(constants)) == before


def test_offline_the_cache_is_read_without_asking(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(downloads, "answers", lambda _: pytest.fail("asked"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)  # as the variable of that name sets it
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    (tmp_path / "models--a--b" / "refs").mkdir(parents=True)
    (tmp_path / "models--a--b" / "refs" / "main").write_text("0" * 40)
    (tmp_path / "models--a--b" / "snapshots" / ("0" * 40)).mkdir(parents=True)
    with pytest.raises(UserError, match="hf://a/b is neither a run folder"):
        load("hf://a/b")
    with pytest.raises(UserError, match=r"^cannot download a/c from the Hub: .*; check the name"):
        load("hf://a/c")
