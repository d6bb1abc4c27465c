"""A Hugging Face Hub on the loopback: it takes uploads, and gives them back to the real client over HTTP."""

import base64
import hashlib
import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

COMMIT = "0" * 40


class FakeHub(ThreadingHTTPServer):
    """One model repository."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.created: dict[str, Any] = {}  # the request for a repository
        self.files: dict[str, bytes] = {}
        self.refuses = False  # every upload


class Handler(BaseHTTPRequestHandler):
    server: FakeHub

    def reply(self, value: Any, status: int = 200, **headers: str) -> None:
        data = value if isinstance(value, bytes) else json.dumps(value).encode()
        self.send_response(status)
        for name, text in {"Content-Length": str(len(data)), "X-Repo-Commit": COMMIT, **headers}.items():
            self.send_header(name, text)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def do_POST(self) -> None:
        hub, body = self.server, self.rfile.read(int(self.headers["Content-Length"]))
        if self.path == "/api/repos/create":
            hub.created = json.loads(body)
            self.reply({"url": f"{hub.url}/{hub.created['organization']}/{hub.created['name']}"})
        elif "/preupload/" in self.path and hub.refuses:
            self.reply({"error": "not yours"}, 403)
        elif "/preupload/" in self.path:
            names = [file["path"] for file in json.loads(body)["files"]]
            self.reply({"files": [{"path": n, "uploadMode": "regular", "shouldIgnore": False} for n in names]})
        elif "/commit/" in self.path:
            lines = [json.loads(line) for line in body.splitlines()]
            files = [line["value"] for line in lines if line["key"] == "file"]
            hub.files |= {file["path"]: base64.b64decode(file["content"]) for file in files}
            self.reply({"commitUrl": f"{hub.url}/me/x/commit/{COMMIT}", "commitOid": COMMIT, "success": True})
        else:  # whether the card's head is valid
            self.reply({})

    def do_GET(self) -> None:
        files = {name: (data, hashlib.sha1(data).hexdigest()) for name, data in self.server.files.items()}
        if "/resolve/" in self.path:
            data, oid = files[self.path.rpartition("/")[2]]
            self.reply(data, ETag=f'"{oid}"')
        elif "/tree/" in self.path:
            self.reply([{"type": "file", "path": n, "size": len(d), "oid": oid} for n, (d, oid) in files.items()])
        else:
            self.reply({"id": "me/x", "sha": COMMIT, "siblings": [{"rfilename": name} for name in files]})

    do_HEAD = do_GET

    def log_message(self, *_: Any) -> None:
        """Nothing on standard error."""
