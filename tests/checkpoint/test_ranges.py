"""Arithmetic of ranges, and what answers are accepted."""

from __future__ import annotations

from datetime import UTC, datetime
from http.client import HTTPResponse
from typing import cast
from urllib.parse import urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ntool.lib.checkpoint import ranges
from ntool.lib.checkpoint.connections import origin
from ntool.lib.checkpoint.range_client import _target
from ntool.lib.checkpoint.ranges import BadReply, Span, range_field, span_of_reply


def test_the_end_of_a_range_is_inclusive() -> None:
    assert range_field(0, 8) == "bytes=0-7"
    assert range_field(8, 1) == "bytes=8-8"
    assert range_field(100, 50) == "bytes=100-149"


def partial(text: str, **others: str) -> dict[str, str]:
    return {"content-range": text, **others}


@given(st.integers(0, 50), st.integers(1, 50), st.integers(1, 60))
def test_206_has_exactly_what_the_file_has_of_the_range(
    offset: int, count: int, total: int
) -> None:
    for first in range(max(0, offset - 1), offset + 2):
        for last in range(max(0, offset + count - 3), offset + count + 1):
            fields = partial(f"bytes {first}-{last}/{total}")
            exact = first == offset and last == min(offset + count, total) - 1
            if exact:
                expected = Span(offset, last - first + 1, total)
                assert span_of_reply(206, fields, offset, count) == expected
            else:
                with pytest.raises(BadReply, match="Content-Range"):
                    span_of_reply(206, fields, offset, count)


@pytest.mark.parametrize(
    "text",
    [
        "", "bytes 0-9", "bytes 0-9/*", "bytes */100", "bytes 0-9/-1", "bytes 00-9/9 9",
        "bytes=0-9/100", "items 0-9/100", "bytes 0-9/100, bytes 20-29/100", "bytes 0-１/100",
        "bytes 0-9/99999999999999999999",
    ],
)  # fmt: skip
def test_other_content_ranges(text: str) -> None:
    with pytest.raises(BadReply, match="Content-Range"):
        span_of_reply(206, partial(text), 0, 10)


def test_an_encoded_body_is_refused() -> None:
    for status in (200, 206):
        with pytest.raises(BadReply, match="gzip"):
            span_of_reply(status, partial("bytes 0-9/10", **{"content-encoding": "gzip"}), 0, 10)
    fields = partial("bytes 0-9/10", **{"content-encoding": "identity"})
    assert span_of_reply(206, fields, 0, 10).count == 10


def test_200_is_cut_off_where_that_is_not_far() -> None:
    assert span_of_reply(200, {"content-length": "5000000000"}, 0, 100) == Span(0, 100, 5 * 10**9)
    assert span_of_reply(200, {"content-length": "50"}, 0, 100) == Span(0, 50, 50)
    assert span_of_reply(200, {}, 20, 100) == Span(0, 120, None)
    with pytest.raises(BadReply, match="ignores ranges"):
        span_of_reply(200, {"content-length": "5000000000"}, ranges.MAX_CUT, 1)


def test_416_is_an_answer_about_an_empty_file_only() -> None:
    assert span_of_reply(416, partial("bytes */0"), 0, 100) == Span(0, 0, 0)
    for offset, text in ((1, "bytes */0"), (0, "bytes */10"), (0, "")):
        with pytest.raises(BadReply, match="416"):
            span_of_reply(416, partial(text), offset, 100)


def test_other_statuses() -> None:
    for status in (201, 204, 304):
        with pytest.raises(BadReply, match=str(status)):
            span_of_reply(status, partial("bytes 0-9/10"), 0, 10)


def test_retry_after() -> None:
    now = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    assert ranges.retry_after("120") == 120
    assert ranges.retry_after(" 0 ") == 0
    assert ranges.retry_after("Fri, 02 Jan 2026 03:04:35 GMT", now) == 30
    assert ranges.retry_after("Fri, 02 Jan 2026 03:04:00 GMT", now) == 0
    for text in (None, "", "soon", "-1", "1.5", "１"):
        assert ranges.retry_after(text) is None


def test_pauses_double_and_differ() -> None:
    assert [ranges.pause(n, 0) for n in (1, 2, 3)] == [0.25, 0.5, 1.0]
    assert [ranges.pause(n, 1) for n in (1, 2, 3)] == [0.5, 1.0, 2.0]
    assert len({ranges.pause(1) for _ in range(20)}) > 1


def test_a_deadline_grants_time_for_bytes() -> None:
    assert ranges.Deadline(10, 0).seconds == 30
    assert ranges.Deadline(10, 1_000_000).seconds == 50
    assert ranges.Deadline(0, 0).left == 0


class _Redirect:
    status = 302

    def __init__(self, location: str | None) -> None:
        self._location = location

    def getheader(self, name: str) -> str | None:
        assert name == "location"
        return self._location


def redirect(place: str, location: str | None) -> str:
    return _target(urlsplit(place), cast(HTTPResponse, _Redirect(location))).geturl()


def test_redirects() -> None:
    assert redirect("https://hub/a/b", "/c?d") == "https://hub/c?d"
    assert redirect("https://hub/a", "https://cdn/x") == "https://cdn/x"
    assert redirect("http://hub/a", "https://hub/a") == "https://hub/a"
    for location, told in (
        ("http://hub/a", "from https to http"),
        ("http://cdn/x", "from https to http"),
        ("ftp://cdn/x", "ftp"),
        ("file:///etc/passwd", "file"),
        (None, "without Location"),
    ):
        with pytest.raises(BadReply, match=told):
            redirect("https://hub/a", location)


def test_origins_differ_by_scheme_host_and_port() -> None:
    def of(url: str) -> tuple[str, str, int]:
        return origin(urlsplit(url))

    assert of("https://Hub/a") == of("https://hub:443/b") == of("https://user@hub./c")
    others = ("http://hub", "https://hub:444", "https://hub.example", "https://hubs")
    assert all(of(o) != of("https://hub") for o in others)
