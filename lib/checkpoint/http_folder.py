"""A file on a plain web server, and the files beside it. Servers have no listing that is one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar
from urllib.parse import quote, unquote, urlsplit

from ..errors import EnvironmentProblem, SourceNotFound, Unsupported, UsageProblem
from .connections import origin
from .folder import NotReadable, Readable
from .paths import path_fault
from .range_client import Part, RangeClient, Refused
from .remote_file import RemoteFile

T = TypeVar("T")


def open_http(url: str) -> tuple[HttpFolder, str]:
    """The folder of a file's address, and the file's name.

    Raises:
        UsageProblem: it is no address.
        Unsupported: the address names no file.
        SourceNotFound, EnvironmentProblem: the file cannot be read.
    """
    try:
        parts = urlsplit(url)
        origin(parts)
    except ValueError as e:
        raise UsageProblem(f"{url}: no web address: {e}", expected="https://HOST/FILE") from e
    inside, _, last = parts.path.rpartition("/")
    name = unquote(last)
    if not parts.netloc or "/" in name or path_fault(name):
        raise Unsupported(
            f"{url}: a web address without a file's name",
            expected="the address of a .safetensors or *.index.json file",
            hint="a repository on the Hub is OWNER/NAME, not its page",
        )
    from ...version import VERSION
    from .hub import timeout

    query = f"?{parts.query}" if parts.query else ""
    folder = HttpFolder(
        RangeClient(timeout(), agent=f"ntool/{VERSION}"),
        f"{parts.scheme}://{parts.netloc}{inside}",
        {name: f"{parts.scheme}://{parts.netloc}{parts.path}{query}"},
    )
    if not folder.exists(name):
        raise SourceNotFound(f"{folder.root}/{name}: no such file (status 404)")
    return folder, name


class HttpFolder:
    """The files beside an address, each found by asking for it.

    Args:
        base: address of the folder.
        addresses: of files that have another than `base/name`.
    """

    local = False
    revision: str | None = None

    def __init__(self, client: RangeClient, base: str, addresses: dict[str, str]) -> None:
        self._client, self._base, self._addresses = client, base, addresses
        # a password in an address is not for messages
        host = urlsplit(base).netloc.rpartition("@")[2]
        self.root = f"{urlsplit(base).scheme}://{host}{urlsplit(base).path}"
        self._opened: dict[str, RemoteFile] = {}

    @property
    def requests(self) -> int:
        """Sent so far."""
        return self._client.requests

    @property
    def bytes_read(self) -> int:
        """Bytes that came over the network."""
        return self._client.bytes_read

    def names(self, inside: str = "") -> list[str]:
        """None: there is no listing."""
        return []

    def is_folder(self, name: str) -> bool:
        """False: there is no listing."""
        return False

    def exists(self, name: str) -> bool:
        """Whether the server has the file; its start is kept for `open`."""
        try:
            self._opened[name] = self._remote(name, 0)
        except NotReadable:
            return False
        return True

    @contextmanager
    def open(self, name: str, expect: int = 0) -> Iterator[Readable]:
        """Open a file: one request, which brings its start.

        Raises:
            NotReadable: the server does not have it.
        """
        if name in self._opened:
            yield self._opened.pop(name)
        else:
            yield self._remote(name, expect)

    def size(self, name: str) -> int:
        """Bytes of a file.

        Raises:
            NotReadable: it is not there.
        """
        with self.open(name) as f:
            return f.nbytes

    def each(self, function: Callable[[str], T], names: Sequence[str]) -> Iterator[T]:
        """`function(name)` of all names, in their order, sixteen at a time."""
        return self._client.in_order(function, names)

    def _remote(self, name: str, expect: int) -> RemoteFile:
        url = self._addresses.get(name) or f"{self._base}/{quote(name)}"

        def fetch(offset: int, count: int) -> Part:
            try:
                return self._client.part(url, name, offset, count)
            except Refused as e:
                if e.status in (404, 410):
                    raise NotReadable(name, "missing-shard", f"status {e.status}") from e
                raise EnvironmentProblem(f"{name}: network: {e.message}") from e

        return RemoteFile(name, fetch, None, min(expect, _UNSEEN))


_UNSEEN = 4_000_000
"""Most that is asked for of a file whose size is not known yet: it may be far over any limit."""
