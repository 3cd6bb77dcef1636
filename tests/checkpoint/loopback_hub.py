"""A Hub on this machine: serves folders as repositories, keeps a log, and misbehaves on request.

`python -m tests.checkpoint.loopback_hub FOLDER --delay 0.03` serves one folder as `org/model` for
the benchmarks: it prints its address, and a line of JSON with requests and bytes for each line that
it reads.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlsplit

HUB, CDN = "hub", "cdn"


def commit_of(text: str) -> str:
    """A commit for a name, always the same."""
    return hashlib.sha1(text.encode()).hexdigest()


@dataclass
class Repository:
    """A folder as a repository.

    Attributes:
        revisions: branch or tag -> commit. Each commit has the same files.
        token: the only one that may read, or None.
        gated: nobody may read.
        listing: entries of the listing in place of those of the folder's files.
    """

    folder: Path
    revisions: dict[str, str] = field(default_factory=lambda: {"main": commit_of("main")})
    token: str | None = None
    gated: bool = False
    listing: list[dict[str, Any]] | None = None

    def siblings(self) -> list[dict[str, Any]]:
        if self.listing is not None:
            return self.listing
        files = sorted(p for p in self.folder.rglob("*") if p.is_file())
        return [
            {
                "rfilename": p.relative_to(self.folder).as_posix(),
                "size": p.stat().st_size,
                "blobId": commit_of(p.name),
            }
            for p in files
        ]


@dataclass
class Request:
    """A line of the log.

    Attributes:
        port: `hub` or `cdn`.
        sent: bytes of the body that were sent.
    """

    port: str
    method: str
    path: str
    fields: dict[str, str]
    status: int = 0
    sent: int = 0


@dataclass
class Reply:
    """An answer before it is sent; a fault changes it.

    Attributes:
        body: bytes, or (path, offset, count).
        sends: bytes of the body after which the connection is closed, or None: all.
        stalls: whether instead of closing nothing more is sent.
        silent: nothing is sent at all.
        drips: the header comes a byte at a time.
        slow: seconds before each byte of the body, or 0.
    """

    status: int = 200
    fields: dict[str, str] = field(default_factory=dict)
    body: bytes | tuple[Path, int, int] = b""
    sends: int | None = None
    stalls: bool = False
    silent: bool = False
    drips: bool = False
    slow: float = 0.0

    @property
    def nbytes(self) -> int:
        return len(self.body) if isinstance(self.body, bytes) else self.body[2]


Fault = Callable[[Reply, Request, int], None]
"""Changes the reply to a request; the number counts the requests of that fault, from 1."""


class LoopbackHub:
    """Two servers: the Hub, and a "CDN" on another port that it may redirect to.

    Args:
        delay: seconds before each answer.
        redirects: safetensors files are on the second port.

    Attributes:
        repositories: by `OWNER/NAME`.
        faults: pattern of a path (`*` matches `/` too) -> what is done to the replies.
        log: requests so far.
    """

    def __init__(self, *, delay: float = 0.0, redirects: bool = False) -> None:
        self.repositories: dict[str, Repository] = {}
        self.faults: dict[str, Fault] = {}
        self.log: list[Request] = []
        self.delay, self.redirects = delay, redirects
        self.stopping = threading.Event()
        self._counts: dict[str, int] = {}
        self._lock = threading.Lock()
        self._servers = {name: _Server(self, name) for name in (HUB, CDN)}

    def __enter__(self) -> LoopbackHub:
        return self

    def __exit__(self, *_: object) -> None:
        self.stopping.set()
        for server in self._servers.values():
            server.shutdown()
            server.server_close()

    def address(self, port: str = HUB) -> str:
        return f"http://127.0.0.1:{self._servers[port].server_port}"

    def environment(self, home: Path) -> dict[str, str]:
        """What points a client at this Hub, and at nothing of the user's."""
        return {
            "HF_ENDPOINT": self.address(),
            "HF_HOME": str(home),
            "HF_HUB_DISABLE_PROGRESS_BARS": "1",
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "HF_HUB_DISABLE_XET": "1",
            "NO_PROXY": "127.0.0.1",
        }

    def add(self, name: str, folder: Path, **options: Any) -> Repository:
        return self.repositories.setdefault(name, Repository(folder, **options))

    @property
    def sent(self) -> int:
        """Bytes of bodies."""
        return sum(r.sent for r in self.log)

    def paths(self, port: str = HUB) -> list[str]:
        return [unquote(r.path) for r in self.log if r.port == port]

    def drop_connections(self) -> None:
        """Close all connections that wait for a request."""
        for server in self._servers.values():
            server.drop()
        time.sleep(0.05)

    def reply(self, request: Request) -> Reply:
        """The answer to a request, with its faults."""
        with self._lock:
            self.log.append(request)
        path = urlsplit(request.path).path
        if request.port == CDN:
            reply = self._blob(*path.removeprefix("/").split("/", 3), request=request)
        elif path.startswith("/api/models/"):
            reply = self._listing(path.removeprefix("/api/models/").split("/"), request)
        else:
            owner, name, kind, revision, file = [*path.removeprefix("/").split("/", 4), *[""] * 4][
                :5
            ]
            known = kind == "resolve" and self.repositories.get(f"{owner}/{name}")
            reply = (
                self._file(f"{owner}/{name}", unquote(revision), unquote(file), request)
                if known
                else _error(404, "RepoNotFound")
            )
        for pattern, fault in list(self.faults.items()):
            if fnmatchcase(f"{request.port}:{unquote(path)}", pattern):
                with self._lock:
                    count = self._counts[pattern] = self._counts.get(pattern, 0) + 1
                fault(reply, request, count)
        return reply

    def _listing(self, parts: list[str], request: Request) -> Reply:
        repository = self.repositories.get("/".join(parts[:2]))
        if repository is None:
            return _error(401 if "authorization" not in request.fields else 404, "RepoNotFound")
        denied = _denied(repository, request)
        if denied:
            return denied
        revision = (
            unquote(parts[3]) if len(parts) > 3 and parts[2] in ("revision", "tree") else "main"
        )
        commit = _commit(repository, revision)
        if commit is None:
            return _error(404, "RevisionNotFound")
        siblings = repository.siblings()
        if parts[2:3] == ["tree"]:
            tree = [
                {"type": "file", "path": s["rfilename"], "size": s["size"], "oid": s["blobId"]}
                for s in siblings
            ]
            return Reply(200, {"Content-Type": "application/json"}, json.dumps(tree).encode())
        if "blobs" not in parse_qs(urlsplit(request.path).query):
            siblings = [{"rfilename": s["rfilename"]} for s in siblings]
        value = {"id": "/".join(parts[:2]), "sha": commit, "siblings": siblings}
        fields = {"Content-Type": "application/json"}
        return Reply(200, fields, json.dumps(value).encode())

    def _file(self, name: str, revision: str, file: str, request: Request) -> Reply:
        repository = self.repositories[name]
        denied = _denied(repository, request)
        if denied:
            return denied
        commit = _commit(repository, revision)
        if commit is None:
            return _error(404, "RevisionNotFound")
        path = repository.folder / file
        if not path.is_file():
            reply = _error(404, "EntryNotFound")
            reply.fields["X-Repo-Commit"] = commit
            return reply
        if self.redirects and file.endswith(".safetensors"):
            target = f"{self.address(CDN)}/{name}/{commit}/{quote(file)}?signature=secret"
            fields = {
                "Location": target,
                "X-Linked-Size": str(path.stat().st_size),
                "X-Linked-ETag": f'"{commit_of(file)}"',
                "X-Repo-Commit": commit,
            }
            return Reply(302, fields, b"elsewhere")
        reply = _content(path, request, file)
        reply.fields["X-Repo-Commit"] = commit
        return reply

    def _blob(self, owner: str, name: str, commit: str, file: str, request: Request) -> Reply:
        return _content(
            self.repositories[f"{owner}/{name}"].folder / unquote(file), request, unquote(file)
        )


def _denied(repository: Repository, request: Request) -> Reply | None:
    if repository.gated:
        return _error(403, "GatedRepo")
    given = request.fields.get("authorization")
    if repository.token is not None and given != f"Bearer {repository.token}":
        return _error(403, "") if given else _error(401, "RepoNotFound")
    return None


def _commit(repository: Repository, revision: str) -> str | None:
    if revision in repository.revisions.values():
        return revision
    return repository.revisions.get(revision)


def _error(status: int, code: str) -> Reply:
    fields = {"X-Error-Code": code, "X-Error-Message": "no"} if code else {}
    return Reply(status, fields, b'{"error":"no"}')


def _content(path: Path, request: Request, file: str) -> Reply:
    size = path.stat().st_size
    fields = {"ETag": f'"{commit_of(file)}"', "Accept-Ranges": "bytes"}
    asked = request.fields.get("range")
    if asked is None:
        return Reply(200, fields, (path, 0, size))
    first, _, last = asked.removeprefix("bytes=").partition("-")
    begin, end = int(first), min(int(last or size) + 1, size)
    if begin >= size:
        return Reply(416, {**fields, "Content-Range": f"bytes */{size}"}, b"")
    fields["Content-Range"] = f"bytes {begin}-{end - 1}/{size}"
    return Reply(206, fields, (path, begin, end - begin))


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1
    server: _Server

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        hub = self.server.hub
        fields = {k.lower(): v for k, v in self.headers.items()}
        request = Request(self.server.name, self.command, self.path, fields)
        if hub.delay:
            time.sleep(hub.delay)
        reply = hub.reply(request)
        request.status = reply.status
        if reply.silent:
            self._stop(stall=True)
            return
        if reply.drips:
            for byte in b"HTTP/1.1 200 OK\r\nX: " + b"x" * 10_000:
                self.wfile.write(bytes([byte]))
                self.wfile.flush()
                if hub.stopping.wait(0.1):
                    break
            self._stop(stall=False)
            return
        self.send_response(reply.status)
        reply.fields.setdefault("Content-Length", str(reply.nbytes))
        for key, value in reply.fields.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command == "HEAD":
            return
        try:
            self._body(reply, request)
            self.wfile.flush()
        except OSError:
            self.close_connection = True
        if reply.sends is not None:
            self._stop(reply.stalls)

    do_HEAD = do_GET

    def _body(self, reply: Reply, request: Request) -> None:
        """Send the body; what is counted is what was begun to be sent."""
        left = reply.nbytes if reply.sends is None else min(reply.sends, reply.nbytes)
        if isinstance(reply.body, bytes):
            request.sent = left
            self.wfile.write(reply.body[:left])
            return
        path, offset, _ = reply.body
        with open(path, "rb") as f:
            f.seek(offset)
            while left and not (reply.slow and self.server.hub.stopping.wait(reply.slow)):
                piece = f.read(1 if reply.slow else min(left, 1 << 16))
                request.sent += len(piece)
                self.wfile.write(piece)
                left -= len(piece)
                if reply.slow:
                    self.wfile.flush()

    def _stop(self, stall: bool) -> None:
        self.wfile.flush()
        if stall:
            self.server.hub.stopping.wait(60)
        self.close_connection = True


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 64

    def __init__(self, hub: LoopbackHub, name: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.hub, self.name = hub, name
        self._open: list[socket.socket] = []
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()

    def process_request(self, request: Any, client_address: Any) -> None:
        self._open.append(request)
        super().process_request(request, client_address)

    def drop(self) -> None:
        for connection in self._open:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        self._open.clear()

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass  # a client that cut the connection


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--delay", type=float, default=0.0)
    options = parser.parse_args()
    with LoopbackHub(delay=options.delay) as hub:
        hub.add("org/model", options.folder)
        print(hub.address(), flush=True)
        for _ in sys.stdin:
            print(json.dumps({"requests": len(hub.log), "bytes": hub.sent}), flush=True)
            hub.log.clear()


if __name__ == "__main__":
    main()
