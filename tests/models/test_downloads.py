"""The Hub is asked once: without a network, its cache alone, and one line."""

from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

import pytest
from huggingface_hub import constants

from antishortcut import load
from antishortcut.errors import UserError
from antishortcut.models import build
from antishortcut.models.downloads import answers

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


def test_without_a_network_weights_are_asked_for_once(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setattr(constants, "ENDPOINT", CLOSED)
    words = f"^cannot download the weights of timm:test_vit: {CLOSED} does not answer; start without: --no-pretrained"
    with pytest.raises(UserError, match=words):
        build("timm:test_vit", 3, image_size=32, pretrained=True)
    with pytest.raises(UserError, match=f"^cannot download a/b from the Hub: {CLOSED} does not answer; check"):
        load("hf://a/b")
    assert "Retry" not in "".join(capfd.readouterr())
    assert constants.HF_HUB_OFFLINE is False
