"""HTTP/1.1 connections that are kept and used again, for several threads. Standard library only.

Why not httpx2, which huggingface_hub brings along: for 131 small requests it took 0.12 s of CPU
time and 0.08 s to load, of the 0.9 s that the whole command has; this takes 0.05 s together.
"""

from __future__ import annotations

import base64
import http.client
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import SplitResult, quote, unquote, urlsplit

from ..errors import EnvironmentProblem, Unsupported

if TYPE_CHECKING:
    import ssl

FAILURES = (OSError, http.client.HTTPException)
"""What sending and receiving raises."""
_STALE = (http.client.RemoteDisconnected, ConnectionError)
_PORTS = {"http": 80, "https": 443}
_SAFE = "/%:@!$&'()*+,;=~-._"
"""Characters of a path that are sent as they are."""


class Origin(NamedTuple):
    """What two addresses share if one may see the other's secrets."""

    scheme: str
    host: str
    port: int


def origin(url: SplitResult) -> Origin:
    """Scheme, host and port of an address.

    Raises:
        ValueError: a port that is no number.
    """
    return Origin(url.scheme, (url.hostname or "").rstrip("."), url.port or _PORTS[url.scheme])


def password(url: SplitResult) -> str | None:
    """The field Authorization for the user and password of an address, if it has them."""
    if url.username is None:
        return None
    return _basic(url.username, url.password or "")


def _basic(user: str, word: str) -> str:
    return "Basic " + base64.b64encode(f"{unquote(user)}:{unquote(word)}".encode()).decode()


class Connections:
    """Sends GET requests.

    Args:
        timeout: seconds for connecting, and between bytes.
    """

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._idle: dict[Origin, list[http.client.HTTPConnection]] = {}
        self._lock = threading.Lock()
        self._secure: ssl.SSLContext | None = None
        # most environments name no proxy, and urllib.request takes longer to load than all this
        named = any(k.lower().endswith("_proxy") for k in os.environ)
        self._proxies = named or os.name == "nt" or os.uname().sysname == "Darwin"

    def __del__(self) -> None:
        for idle in self._idle.values():
            for connection in idle:
                connection.close()

    @contextmanager
    def get(
        self, url: SplitResult, fields: Mapping[str, str]
    ) -> Iterator[http.client.HTTPResponse]:
        """The answer to a request, its body unread. A connection whose answer was read to its end
        is used again.

        Raises:
            OSError, http.client.HTTPException: it could not be sent, or no answer came.
            ValueError: an address that is none.
        """
        place = origin(url)
        connection, response = self._answer(place, url, fields)
        try:
            yield response
        finally:
            if response.isclosed() and connection.sock is not None:
                with self._lock:
                    self._idle.setdefault(place, []).append(connection)
            else:
                response.close()
                connection.close()

    def _answer(
        self, place: Origin, url: SplitResult, fields: Mapping[str, str]
    ) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        while True:
            with self._lock:
                idle = self._idle.get(place)
                connection = idle.pop() if idle else None
            used = connection is not None
            connection = connection or self._new(place)
            try:
                connection.request("GET", self._target(place, url), headers=dict(fields))
                return connection, connection.getresponse()
            except _STALE:
                connection.close()
                if not used:
                    raise
                # the server had given up the connection meanwhile; the next is another one
            except BaseException:
                connection.close()
                raise

    def _target(self, place: Origin, url: SplitResult) -> str:
        path = quote(url.path or "/", safe=_SAFE)
        if url.query:
            path += "?" + quote(url.query, safe=_SAFE + "?")
        if place.scheme == "http" and self._proxy(place) is not None:
            return f"http://{url.netloc.rpartition('@')[2]}{path}"
        return path

    def _new(self, place: Origin) -> http.client.HTTPConnection:
        proxy = self._proxy(place)
        host, port = (place.host, place.port) if proxy is None else _address(proxy)
        if place.scheme == "http":
            return http.client.HTTPConnection(host, port, timeout=self._timeout)
        connection = http.client.HTTPSConnection(
            host, port, timeout=self._timeout, context=self._context()
        )
        if proxy is not None:
            word = password(proxy)
            connection.set_tunnel(
                place.host, place.port, {"Proxy-Authorization": word} if word else {}
            )
        return connection

    def _proxy(self, place: Origin) -> SplitResult | None:
        """The proxy that the environment names for an address."""
        if not self._proxies:
            return None
        from urllib.request import getproxies, proxy_bypass

        proxies = getproxies()
        named = proxies.get(place.scheme) or proxies.get("all")
        if not named or proxy_bypass(f"{place.host}:{place.port}"):
            return None
        return urlsplit(named if "://" in named else f"http://{named}")

    def _context(self) -> ssl.SSLContext:
        with self._lock:
            if self._secure is None:
                import ssl

                self._secure = ssl.create_default_context()
            return self._secure


def _address(proxy: SplitResult) -> tuple[str, int]:
    """Host and port of a proxy.

    Raises:
        Unsupported: it is none of HTTP.
        EnvironmentProblem: its address is none.
    """
    if proxy.scheme != "http":
        raise Unsupported(f"proxy: {proxy.scheme}://", expected="http://HOST:PORT")
    try:
        port = proxy.port or 80
    except ValueError as e:
        raise EnvironmentProblem(f"proxy: {e}") from e
    return proxy.hostname or "", port
