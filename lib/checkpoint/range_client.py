"""Reads byte ranges of files over HTTP, and distrusts what it gets.

Redirects are followed here: the token goes to no other host, and https does not become http.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotYet
from contextlib import contextmanager
from http.client import HTTPResponse
from typing import TypeVar
from urllib.parse import SplitResult, urljoin, urlsplit

from ..errors import EnvironmentProblem
from . import parallel, ranges
from .connections import FAILURES, Connections, origin, password
from .ranges import BadReply, Deadline, Interrupted

T = TypeVar("T")
R = TypeVar("R")

MAX_HOPS = 5
_REDIRECTS = (301, 302, 303, 307, 308)
_PIECE = 1 << 18


class Refused(EnvironmentProblem):
    """An answer with an error status.

    Attributes:
        status: of HTTP.
        fields: of its header, names in lower case.
    """

    def __init__(self, what: str, status: int, fields: Mapping[str, str]) -> None:
        super().__init__(what, found=f"status {status}")
        self.status, self.fields = status, fields


class Part:
    """Bytes of a file.

    Attributes:
        data: fewer than asked for only at the file's end.
        total: size of the file, or None where the server does not say.
        identity: what changes when the file does: its ETag, or "".
        commit: of the repository, in the first answer, or None.
    """

    __slots__ = ("commit", "data", "identity", "total")

    def __init__(self, data: bytes, total: int | None, identity: str, commit: str | None) -> None:
        self.data, self.total, self.identity, self.commit = data, total, identity, commit


class RangeClient:
    """Reads parts of files, from several threads.

    Args:
        timeout: seconds without a byte after which a request fails.
        token: sent to the host that was asked, to no other.
        agent: the field User-Agent.

    Attributes:
        requests: sent so far, redirects and repetitions included.
        bytes_read: of the bodies of their answers.
    """

    def __init__(self, timeout: float, token: str | None = None, agent: str = "ntool") -> None:
        self.timeout = timeout
        self.requests = self.bytes_read = 0
        self._fields = {"User-Agent": agent, "Accept-Encoding": "identity"}
        self._token = token
        self._lock = threading.Lock()
        self._slots = threading.BoundedSemaphore(parallel.IN_FLIGHT)
        self._moved = time.monotonic()
        self._connections = Connections(timeout)

    def whole(self, url: str, name: str, limit: int) -> bytes:
        """The body of an answer that is no file: a listing.

        Args:
            name: how messages call it.
            limit: most bytes that are read.
        Raises:
            Refused, EnvironmentProblem: as `part`.
        """

        def body(response: HTTPResponse, deadline: Deadline, _: HTTPResponse) -> bytes:
            if response.status != 200:
                raise BadReply(f"status: found {response.status}, expected 200")
            ranges.span_of_reply(200, _fields(response), 0, 1)  # not encoded
            data = self._body(response, limit + 1, deadline, cut=True)
            if len(data) > limit:
                raise BadReply(f"found over {limit} bytes, expected at most so many")
            if response.length:
                raise Interrupted(f"ended after {len(data)} of {len(data) + response.length} bytes")
            return data

        return self._watched(lambda: self._tried(url, name, {}, 1 << 22, body))

    def part(self, url: str, name: str, offset: int, count: int) -> Part:
        """Bytes `offset` to `offset + count` of a file, in one request where nothing goes wrong.

        Raises:
            Refused: an error status that repeating does not change.
            EnvironmentProblem: no answer in time, or not the one that was asked for.
        """

        def body(response: HTTPResponse, deadline: Deadline, first: HTTPResponse) -> Part:
            fields = _fields(response)
            span = ranges.span_of_reply(response.status, fields, offset, count)
            total = span.total
            # an answer that is read to its end leaves its connection for the next request
            cut = response.status == 200 and (total is None or total > span.count)
            data = self._body(response, span.count, deadline, cut)
            if len(data) < span.count:
                if total is not None:
                    raise Interrupted(f"ended after {len(data)} of {span.count} bytes")
                total = len(data)
            etag = first.getheader("x-linked-etag") or fields.get("etag") or ""
            commit = first.getheader("x-repo-commit")
            return Part(data[offset - span.first :], total, etag, commit)

        asked = {"Range": ranges.range_field(offset, count)}
        return self._watched(lambda: self._tried(url, name, asked, count, body))

    def _tried(
        self,
        url: str,
        name: str,
        fields: dict[str, str],
        nbytes: int,
        body: Callable[[HTTPResponse, Deadline, HTTPResponse], T],
    ) -> T:
        """What `body` makes of the answer to a request, which is repeated where that may help.

        Args:
            body: of the final answer, the deadline, and the first answer (before redirects).
        """
        deadline = Deadline(self.timeout, nbytes)
        attempt = 0
        while True:
            attempt += 1
            try:
                with self._slots, self._answer(url, fields, deadline) as (response, first):
                    return body(response, deadline, first)
            except (BadReply, ValueError) as e:
                raise EnvironmentProblem(f"{name}: network: {e}") from e
            except Interrupted as e:
                reason: Exception = e
                wait = e.after
            except FAILURES as e:
                reason, wait = e, None
            told = _told(reason)
            wait = ranges.pause(attempt) if wait is None else wait
            if attempt == ranges.TRIES or wait >= deadline.left:
                if isinstance(reason, Interrupted) and reason.after:
                    told += f", to be repeated after {reason.after:.0f} s"
                tried = f"tried {attempt} times" if attempt > 1 else "tried once"
                host = urlsplit(url).netloc.rpartition("@")[2]
                raise EnvironmentProblem(
                    f"{name}: network: {host}: {told} ({tried})", hint=self._hint(reason)
                ) from reason
            self._rest(wait)

    def _rest(self, seconds: float) -> None:
        """A pause, in which nothing is expected to arrive."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            self._progress()
            time.sleep(min(left, self.timeout))

    def _hint(self, reason: Exception) -> str | None:
        if isinstance(reason, TimeoutError):
            return f"HF_HUB_DOWNLOAD_TIMEOUT is {self.timeout:g} seconds"
        return None

    @contextmanager
    def _answer(
        self, url: str, fields: dict[str, str], deadline: Deadline
    ) -> Iterator[tuple[HTTPResponse, HTTPResponse]]:
        """The answer to one request, its body unread, and the first on the way to it.

        The token is dropped as soon as scheme, host or port change, and does not come back.

        Raises:
            Refused, BadReply, Interrupted; what `Connections.get` raises.
        """
        place = urlsplit(url)
        secret = f"Bearer {self._token}" if self._token else password(place)
        first: HTTPResponse | None = None
        for _ in range(MAX_HOPS + 1):
            sent = {**self._fields, **fields, **({"Authorization": secret} if secret else {})}
            with self._lock:
                self.requests += 1
            self._progress()
            with self._connections.get(place, sent) as response:
                self._progress()
                first = first or response
                if response.status not in _REDIRECTS:
                    _require_success(response, place)
                    yield response, first
                    return
                there = _target(place, response)
                if origin(there) != origin(place):
                    secret = None
                place = there
                if ranges.is_small(_fields(response)):
                    self._body(response, ranges.SMALL, deadline, cut=True)
        raise BadReply(f"more than {MAX_HOPS} redirects")

    def _body(
        self, response: HTTPResponse, count: int, deadline: Deadline, cut: bool = False
    ) -> bytes:
        """The body, of which `count` bytes are expected; fewer where it ends before.

        Args:
            cut: leave what comes after them; else it is wrong.
        """
        pieces, have = [], 0
        while piece := response.read1(_PIECE):
            pieces.append(piece)
            have += len(piece)
            self._progress(len(piece))
            if have >= count and cut:
                break
            if have > count:
                raise BadReply(f"found over {count} bytes, expected {count}")
            if not deadline.left:
                raise Interrupted(f"only {have} of {count} bytes in {deadline.seconds:.0f} s")
        data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        return data[:count] if have > count else data

    def _progress(self, nbytes: int = 0) -> None:
        with self._lock:
            self._moved = time.monotonic()
            self.bytes_read += nbytes

    def _watched(self, function: Callable[[], T]) -> T:
        """Run in a thread that the main thread does not wait for longer than `wait` allows."""
        if threading.current_thread() is not threading.main_thread():
            return function()
        return self.wait(parallel.start(function))

    def wait(self, future: Future[T]) -> T:
        """The result of a future, as long as anything at all arrives.

        The time-outs of a request are between bytes: a server that sends its header a byte at a
        time would hold a thread for hours. The thread is left behind, it ends with the process.

        Raises:
            EnvironmentProblem: nothing has for five time-outs.
        """
        while True:
            try:
                return future.result(self.timeout)
            except NotYet:
                if future.done():
                    raise  # the function's own
                quiet = time.monotonic() - self._moved
                if quiet > 5 * self.timeout:
                    message = f"network: nothing arrived for {quiet:.0f} seconds"
                    raise EnvironmentProblem(message) from None

    def in_order(self, function: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
        """`function(item)` of all items, as `parallel.in_order`, each waited for as by `wait`."""
        return parallel.in_order(function, items, self.wait)


def _fields(response: HTTPResponse) -> dict[str, str]:
    """Fields of an answer's header, names in lower case."""
    return {k.lower(): v for k, v in response.getheaders()}


def _told(reason: Exception) -> str:
    """An error of the network in words."""
    if isinstance(reason, TimeoutError):
        return "no answer in time"
    text = getattr(reason, "strerror", None) or str(reason) or type(reason).__name__
    return " ".join(str(text).split())


def _require_success(response: HTTPResponse, place: SplitResult) -> None:
    """Raise on an error status; 416 is left to the reader of ranges.

    Raises:
        Interrupted: asking again may help.
        Refused: it does not.
    """
    status = response.status
    if status in ranges.TRANSIENT:
        after = ranges.retry_after(response.getheader("retry-after"))
        raise Interrupted(f"status {status}", after)
    if status >= 400 and status != 416:
        raise Refused(f"{place.hostname}{place.path}", status, _fields(response))


def _target(place: SplitResult, response: HTTPResponse) -> SplitResult:
    """Where a redirect leads.

    Raises:
        BadReply: nowhere, to a scheme that is not read, or from https to http.
    """
    location = response.getheader("location")
    if not location:
        raise BadReply(f"status {response.status} without Location")
    there = urlsplit(urljoin(place.geturl(), location))
    if there.scheme not in ("http", "https") or not there.hostname:
        raise BadReply(f"redirect from {place.scheme} to {there.scheme[:20]}: refused")
    if (place.scheme, there.scheme) == ("https", "http"):
        raise BadReply(f"redirect from https to http ({there.hostname}): refused")
    return there
