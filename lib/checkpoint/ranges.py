"""Byte ranges of HTTP: what to ask for, what an answer must say, when to ask again.

Pure functions of numbers and header fields; `range_client` does the asking. Sections are of
RFC 9110.
"""

from __future__ import annotations

import random
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

_CONTENT_RANGE = re.compile(
    r"bytes (?:(?P<first>[0-9]{1,19})-(?P<last>[0-9]{1,19})|\*)/(?P<total>[0-9]{1,19}|\*)"
)
_NUMBER = re.compile(r"[0-9]{1,19}")

MAX_CUT = 128_000_000
"""Where a server ignores ranges and sends whole files, bytes that are taken of one before it is
cut off: the largest header, and room."""
SLOWEST = 50_000
"""Bytes a second below which a transfer is given up, after the time that every request has."""
PATIENCE = 3
"""A read with all its tries ends after this many time-outs, and what SLOWEST grants its bytes."""

SMALL = 1 << 16
"""Bytes of the body of a redirect that are read rather than the connection closed."""

TRANSIENT = frozenset({408, 425, 429, 500, 502, 503, 504})
"""Answers after which the same request may succeed."""
TRIES = 4


class BadReply(Exception):
    """A server's answer is not what was asked for; asking again would not help."""


class Interrupted(Exception):
    """An answer that may be better next time.

    Attributes:
        after: seconds that the server asks to wait, or None.
    """

    def __init__(self, message: str, after: float | None = None) -> None:
        super().__init__(message)
        self.after = after


@dataclass(frozen=True, slots=True)
class Span:
    """What an answer holds: bytes `first` to `first + count` of a file of `total` bytes.

    Attributes:
        total: None where the server does not say (only with status 200).
    """

    first: int
    count: int
    total: int | None


def range_field(offset: int, count: int) -> str:
    """The field `Range` for `count` bytes; its end is inclusive (14.1.2)."""
    assert offset >= 0 and count > 0
    return f"bytes={offset}-{offset + count - 1}"


def span_of_reply(status: int, fields: Mapping[str, str], offset: int, count: int) -> Span:
    """What the body of an answer to `range_field(offset, count)` holds, before it is read.

    206 must have exactly the range, or what the file has of it; 200 is a whole file, of which the
    reader skips the start and leaves the rest; 416 is the answer about an empty file.

    Raises:
        BadReply: anything else, or the body is encoded.
    """
    encoding = fields.get("content-encoding", "").strip().lower()
    if encoding not in ("", "identity"):
        raise BadReply(f"Content-Encoding: found {encoding[:40]}, expected identity")
    if status == 206:
        return _partial(fields.get("content-range", ""), offset, count)
    if status == 416:
        found = _CONTENT_RANGE.fullmatch(fields.get("content-range", ""))
        if offset == 0 and found and found["first"] is None and found["total"] == "0":
            return Span(0, 0, 0)
        size = f"of a file of {found['total']} bytes" if found else "of a file"
        raise BadReply(f"status 416 for bytes {offset} to {offset + count} {size}")
    if status == 200:
        length = fields.get("content-length", "")
        total = int(length) if _NUMBER.fullmatch(length) else None
        end = offset + count if total is None else min(offset + count, total)
        if end > MAX_CUT:
            raise BadReply(
                f"status 200 for bytes {offset} to {end}: the server ignores ranges, "
                f"and only the first {MAX_CUT} bytes are read without them"
            )
        return Span(0, end, total)
    raise BadReply(f"status: found {status}, expected 206")


def is_small(fields: Mapping[str, str]) -> bool:
    """Whether a body that nobody wants is worth reading, so that its connection can be used on."""
    length = fields.get("content-length", "")
    return _NUMBER.fullmatch(length) is not None and int(length) <= SMALL


def _partial(text: str, offset: int, count: int) -> Span:
    wanted = f"bytes {offset}-{offset + count - 1}"
    found = _CONTENT_RANGE.fullmatch(text.strip())
    if found is None or found["first"] is None or found["total"] == "*":
        shown = text[:60] or "none"
        raise BadReply(f"Content-Range: found {shown}, expected {wanted}/SIZE")
    first, last, total = int(found["first"]), int(found["last"]), int(found["total"])
    if first != offset or last != min(offset + count, total) - 1:
        raise BadReply(f"Content-Range: found {text[:60]}, expected {wanted}/SIZE")
    return Span(first, last - first + 1, total)


def retry_after(text: str | None, now: datetime | None = None) -> float | None:
    """Seconds of a field `Retry-After`, a number or a date (10.2.3); None if it says nothing."""
    text = (text or "").strip()
    if _NUMBER.fullmatch(text):
        return float(text)
    try:
        moment = parsedate_to_datetime(text)
    except (ValueError, TypeError):
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return max(0.0, (moment - (now or datetime.now(UTC))).total_seconds())


def pause(attempt: int, chance: float | None = None) -> float:
    """Seconds before try `attempt` + 1, from 1: a quarter, a half, ..., each up to twice as long,
    so that sixteen requests that fail together do not come back together."""
    if chance is None:
        chance = random.random()
    return 0.25 * 2.0 ** (attempt - 1) * (1 + chance)


class Deadline:
    """The end of a read, tries and pauses together.

    Args:
        timeout: seconds without a byte after which one request fails.
        nbytes: what is read.
    """

    def __init__(self, timeout: float, nbytes: int) -> None:
        self.seconds = PATIENCE * timeout + nbytes / SLOWEST
        self._end = time.monotonic() + self.seconds

    @property
    def left(self) -> float:
        """Seconds, 0 when it has passed."""
        return max(0.0, self._end - time.monotonic())
