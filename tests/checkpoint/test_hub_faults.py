"""A Hub that misbehaves: each fault has its verdict, in bounded time."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ntool.lib.checkpoint.source import open_checkpoint
from ntool.lib.errors import EnvironmentProblem, SourceNotFound

from .header_files import entry, write
from .hub_fixtures import INDEX, ONE, TIMEOUT, TOKEN, hole, hub, model, require_same
from .loopback_hub import CDN, Fault, LoopbackHub, Reply, Request, commit_of

__all__ = ["hub"]

SHARD = f"hub:*{ONE}"
LISTING = "hub:/api/*"


def always(change: Callable[[Reply], None]) -> Fault:
    return lambda reply, request, count: change(reply)


def once(change: Callable[[Reply], None]) -> Fault:
    """The first answer only."""
    return lambda reply, request, count: change(reply) if count == 1 else None


def setting(**fields: str) -> Callable[[Reply], None]:
    return lambda reply: reply.fields.update({k.replace("_", "-"): v for k, v in fields.items()})


def status(number: int, **fields: str) -> Callable[[Reply], None]:
    def change(reply: Reply) -> None:
        reply.status, reply.body = number, b"no"
        reply.fields = {k.replace("_", "-"): v for k, v in fields.items()}

    return change


def short(reply: Reply) -> None:
    reply.sends = reply.nbytes // 2


def stall(reply: Reply) -> None:
    reply.sends, reply.stalls = reply.nbytes // 2, True


def silent(reply: Reply) -> None:
    reply.silent = True


def drips(reply: Reply) -> None:
    reply.drips = True


def longer(reply: Reply) -> None:
    reply.body = bytes(reply.nbytes + 1)


TRANSIENT = {
    "short": short,
    "stall": stall,
    "silent": silent,
    "429": status(429, Retry_After="0"),
    "429 without a time": status(429),
    "503": status(503),
    "408": status(408),
}
FINAL: dict[str, tuple[Callable[[Reply], None], str]] = {
    "range off by one": (setting(Content_Range="bytes 0-1024/9999"), "Content-Range: found bytes"),
    "range of another place": (setting(Content_Range="bytes 5-30/9999"), "Content-Range: found"),
    "no range": (lambda r: r.fields.__delitem__("Content-Range"), "Content-Range: found none"),
    "unknown total": (setting(Content_Range="bytes 0-9/*"), "Content-Range: found"),
    "another total": (setting(Content_Range="bytes 0-195/196"), "Content-Range: found|size in"),
    "gzip": (setting(Content_Encoding="gzip"), "Content-Encoding: found gzip, expected identity"),
    "416": (status(416, Content_Range="bytes */187"), "status 416 .* of a file of 187 bytes"),
    "more than the range": (longer, "found over"),
    "204": (status(204), "status: found 204, expected 206"),
    "500 for ever": (status(500), "status 500"),
    "429 for ever": (status(429, Retry_After="0"), "status 429"),
    "429 for an hour": (status(429, Retry_After="3600"), "to be repeated after 3600 s .tried once"),
    "400": (status(400), "status 400"),
    "short for ever": (short, "ended after|only 85 of 171 bytes"),  # by what is noticed first
    "stall for ever": (stall, "no answer in time"),
    "silent for ever": (silent, "no answer in time"),
    "redirect to nowhere": (status(302), "without Location"),
    "redirect to a file": (status(302, Location="file:///etc/passwd"), "refused"),
    "redirect to ftp": (status(302, Location="ftp://127.0.0.1/x"), "refused"),
    "redirect to a bad port": (status(302, Location="http://127.0.0.1:99999/x"), "[Pp]ort"),
    "redirect to itself": (status(302, Location="?again"), "more than 5 redirects"),
    "other commit": (setting(X_Repo_Commit=commit_of("other")), "revision moved"),
    "forbidden": (status(403), "no access without a token"),
}


@pytest.mark.parametrize("fault", TRANSIENT)
@pytest.mark.parametrize("where", [SHARD, LISTING, f"hub:*{INDEX}"], ids=["shard", "api", "index"])
def test_what_passes(fault: str, where: str, hub: LoopbackHub, tmp_path: Path) -> None:
    folder = model(tmp_path / "m")
    hub.add("org/model", folder)
    hub.faults[where] = once(TRANSIENT[fault])
    got = open_checkpoint("org/model")
    require_same(got, folder)
    assert got.requests == len(hub.log) == 6  # one more


@pytest.mark.parametrize("fault", FINAL)
def test_what_does_not(fault: str, hub: LoopbackHub, tmp_path: Path) -> None:
    folder = model(tmp_path / "m")
    hub.add("org/model", folder)
    change, words = FINAL[fault]
    hub.faults[SHARD] = always(change)
    started = time.monotonic()
    with pytest.raises(EnvironmentProblem, match=words) as e:
        open_checkpoint("org/model")
    assert ONE in str(e.value)
    assert time.monotonic() - started < 10 * TIMEOUT
    assert len(hub.log) < 15


def test_a_header_that_comes_a_byte_at_a_time(hub: LoopbackHub, tmp_path: Path) -> None:
    """No single time-out passes: something always arrives."""
    hub.add("org/model", model(tmp_path / "m"))
    hub.faults[LISTING] = always(drips)
    started = time.monotonic()
    with pytest.raises(EnvironmentProblem, match="nothing arrived"):
        open_checkpoint("org/model")
    assert time.monotonic() - started < 8 * TIMEOUT


def test_a_body_that_comes_a_byte_at_a_time(hub: LoopbackHub, tmp_path: Path) -> None:
    folder = model(tmp_path / "m")
    hub.add("org/model", folder)

    def slowly(reply: Reply, request: Request, count: int) -> None:
        reply.slow = 0.1

    hub.faults[SHARD] = slowly
    started = time.monotonic()
    with pytest.raises(EnvironmentProblem, match=r"only \d+ of \d+ bytes in"):
        open_checkpoint("org/model")
    assert time.monotonic() - started < 10 * TIMEOUT


def test_a_server_that_ignores_ranges_is_cut_off(hub: LoopbackHub, tmp_path: Path) -> None:
    folder = tmp_path / "m"
    folder.mkdir()
    hole(folder / "model.safetensors", 500_000_000)
    hub.add("org/model", folder)

    def whole(reply: Reply, request: Request, count: int) -> None:
        if "range" in request.fields:
            path = folder / "model.safetensors"
            reply.status, reply.body = 200, (path, 0, path.stat().st_size)
            reply.fields.pop("Content-Range")

    hub.faults["hub:*.safetensors"] = whole
    got = open_checkpoint("org/model")
    require_same(got, folder)
    assert got.problems == []
    assert got.bytes_read < 1_000_000
    # what the sockets hold is gone too, but no more
    time.sleep(0.1)
    assert hub.sent < 100_000_000
    with (
        pytest.raises(EnvironmentProblem, match="ignores ranges"),
        got.folder.open("model.safetensors") as f,
    ):
        f.read(400_000_000, 10)


def test_a_longer_header_from_a_server_that_ignores_ranges(
    hub: LoopbackHub, tmp_path: Path
) -> None:
    folder = tmp_path / "m"
    folder.mkdir()
    rows = {"w": entry("U8", [4], 0, 4)}
    write(folder / "model.safetensors", rows, 4, b" " * 400_000)
    hub.add("org/model", folder)

    def whole(reply: Reply, request: Request, count: int) -> None:
        path = folder / "model.safetensors"
        reply.status, reply.body = 200, (path, 0, path.stat().st_size)
        reply.fields.pop("Content-Range")

    hub.faults["hub:*.safetensors"] = whole
    require_same(open_checkpoint("org/model"), folder)


def test_a_file_that_changes_between_two_reads(hub: LoopbackHub, tmp_path: Path) -> None:
    folder = tmp_path / "m"
    folder.mkdir()
    write(folder / "model.safetensors", {"w": entry("U8", [4], 0, 4)}, 4, b" " * 400_000)
    hub.add("org/model", folder)
    for field, words in (
        ("ETag", "another than before: ETag"),
        ("X-Repo-Commit", "revision moved"),
    ):

        def second(reply: Reply, request: Request, count: int, field: str = field) -> None:
            if count == 2:
                reply.fields[field] = commit_of("other")

        hub.faults = {f"hub:*model.safetensor{'s' if field == 'ETag' else '?'}": second}
        with pytest.raises(EnvironmentProblem, match=words):
            open_checkpoint("org/model")


def test_a_size_that_is_not_the_listing_s(hub: LoopbackHub, tmp_path: Path) -> None:
    folder = model(tmp_path / "m")
    repository = hub.add("org/model", folder)
    repository.listing = repository.siblings()
    with open(folder / ONE, "ab") as f:
        f.write(b"more")
    size = (folder / ONE).stat().st_size
    with pytest.raises(EnvironmentProblem, match=f"size in bytes: found {size}, expected") as e:
        open_checkpoint("org/model")
    assert ONE in str(e.value)


def test_a_file_that_is_listed_and_not_there(hub: LoopbackHub, tmp_path: Path) -> None:
    folder = model(tmp_path / "m")
    hub.add("org/model", folder)
    for number in (404, 410):
        hub.faults[SHARD] = always(status(number, X_Error_Code="EntryNotFound"))
        got = open_checkpoint("org/model")
        assert got.missing == ["b", "a"]
        (problem,) = got.problems
        assert (problem.code, problem.file) == ("missing-shard", ONE)
        assert str(number) in problem.message


@pytest.mark.parametrize(
    "number, code, error, words",
    [
        (401, "", EnvironmentProblem, "no access without a token"),
        (401, "RepoNotFound", SourceNotFound, "no repository"),
        (403, "", EnvironmentProblem, "no access"),
        (403, "GatedRepo", EnvironmentProblem, "gated"),
        (404, "", SourceNotFound, "no repository"),
        (404, "RepoNotFound", SourceNotFound, "no repository"),
        (404, "RevisionNotFound", SourceNotFound, "no revision 'main'"),
        (451, "", EnvironmentProblem, "status 451"),
    ],
)
def test_statuses_of_the_listing(
    number: int, code: str, error: type[Exception], words: str, hub: LoopbackHub
) -> None:
    hub.faults[LISTING] = always(status(number, X_Error_Code=code))
    with pytest.raises(error, match=words):
        open_checkpoint("org/model")
    assert len(hub.log) == 1


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html>",
        b"[]",
        b"{}",
        b'{"sha": 3, "siblings": []}',
        b'{"sha": "main", "siblings": []}',
        b'{"sha": "%s"}' % commit_of("x").encode(),
        b"[" * 100_000,
        b"\xff",
    ],
)
def test_answers_of_no_hub(body: bytes, hub: LoopbackHub) -> None:
    def change(reply: Reply) -> None:
        reply.status, reply.body = 200, body

    hub.faults[LISTING] = always(change)
    with pytest.raises(EnvironmentProblem, match="hf://org/model"):
        open_checkpoint("org/model")


def test_another_commit_than_the_one_asked_for(hub: LoopbackHub) -> None:
    def change(reply: Reply) -> None:
        reply.status = 200
        reply.body = b'{"sha": "%s", "siblings": []}' % commit_of("x").encode()

    hub.faults[LISTING] = always(change)
    with pytest.raises(EnvironmentProblem, match=f"expected {commit_of('main')}"):
        open_checkpoint(f"org/model@{commit_of('main')}")


def test_a_listing_without_end(
    hub: LoopbackHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ntool.lib.checkpoint.hub.MAX_LISTING", 1000)
    folder = model(tmp_path / "m")
    for i in range(20):
        (folder / f"file-{i}").write_text("x")
    hub.add("org/model", folder)
    with pytest.raises(EnvironmentProblem, match="found over 1000 bytes"):
        open_checkpoint("org/model")


def test_nobody_listens(hub: LoopbackHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(EnvironmentProblem, match=r"127\.0\.0\.1:9: .*refused \(tried"):
        open_checkpoint("org/model")


def test_the_token_does_not_come_back_after_another_host(
    hub: LoopbackHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second host sends the request back to the first."""
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    hub.redirects = True
    folder = model(tmp_path / "m")
    hub.add("org/model", folder, token=TOKEN)
    hub.faults[f"{CDN}:*{ONE}"] = always(status(302, Location=f"{hub.address()}/elsewhere/x/y/z"))
    (problem,) = open_checkpoint(f"hf://org/model/{ONE}").problems
    assert problem.code == "missing-shard"  # the first host does not know the place
    back = hub.log[-1]
    assert back.path == "/elsewhere/x/y/z"
    assert "authorization" not in back.fields


def test_a_connection_that_the_server_gave_up(hub: LoopbackHub, tmp_path: Path) -> None:
    """Connections are used again; one that was closed meanwhile is no failure."""
    folder = model(tmp_path / "m")
    hub.add("org/model", folder)
    got = open_checkpoint("org/model")
    before = got.folder.requests
    hub.drop_connections()
    started = time.monotonic()
    assert sum(map(len, got.bands(got.tensor("c")))) == 16
    assert got.folder.requests == before + 1
    assert time.monotonic() - started < 0.2  # no pause
