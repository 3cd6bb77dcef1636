"""Repositories on a loopback Hub: the result is that of the local folder, at a known cost."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ntool.lib.checkpoint import remote_file
from ntool.lib.checkpoint.folder import LocalFolder
from ntool.lib.checkpoint.hub import endpoint, open_hub
from ntool.lib.checkpoint.hub_address import Address
from ntool.lib.checkpoint.index import read_index
from ntool.lib.checkpoint.parallel import AHEAD, IN_FLIGHT
from ntool.lib.checkpoint.remote_file import PREFETCH, expected_headers
from ntool.lib.checkpoint.source import open_checkpoint
from ntool.lib.errors import EnvironmentProblem, SourceNotFound, Unsupported, UsageProblem

from .header_files import entry, index, shard, write
from .hub_fixtures import INDEX, ONE, TOKEN, TWO, hole, hub, model, require_same
from .loopback_hub import CDN, LoopbackHub, Reply, Repository, Request, commit_of

__all__ = ["hub"]


def test_same_as_the_folder(hub: LoopbackHub, tmp_path: Path) -> None:
    folder = model(tmp_path / "m")
    hub.add("org/model", folder)
    got = open_checkpoint("org/model")
    require_same(got, folder)
    assert got.problems == []
    assert got.revision == commit_of("main")
    assert got.root == f"hf://org/model@{commit_of('main')}"
    # the listing, the index, the config, and one for each shard
    assert got.requests == len(hub.log) == 5
    assert got.bytes_read == hub.sent
    # the branch is asked for once; all else names the commit
    first, *others = hub.paths()
    assert first == "/api/models/org/model/revision/main?blobs=true"
    assert all(f"/resolve/{commit_of('main')}/" in path for path in others)
    assert {r.method for r in hub.log} == {"GET"}


def test_payload_is_read_by_ranges_too(hub: LoopbackHub, tmp_path: Path) -> None:
    folder = model(tmp_path / "m")
    payload = (folder / ONE).read_bytes()[:-32] + bytes(range(32))
    (folder / ONE).write_bytes(payload)
    hub.add("org/model", folder)
    got = open_checkpoint("org/model")
    assert b"".join(got.bands(got.tensor("a"), 7)) == bytes(range(16, 32))
    assert b"".join(got.bands(got.tensor("b"), 7)) == bytes(range(16))


def test_forms_of_the_address(hub: LoopbackHub, tmp_path: Path) -> None:
    folder = model(tmp_path / "m")
    model(folder / "sub")
    other = commit_of("v1")
    hub.add("org/model", folder, revisions={"main": commit_of("main"), "v1": other, "a/b": other})
    for source, revision in (
        ("org/model@v1", None),
        ("org/model", "v1"),
        ("org/model@v1", "v1"),
        (f"org/model@{other}", None),
        ("hf://org/model@a%2Fb", None),
        ("org/model@a/b", None),
    ):
        got = open_checkpoint(source, revision=revision)
        assert (got.revision, list(got.tensors)) == (other, ["b", "a", "c"]), source
    for file in (INDEX, "sub", f"sub/{INDEX}"):
        got = open_checkpoint(f"hf://org/model@v1/{file}")
        assert (list(got.tensors), got.problems) == (["b", "a", "c"], []), file
    got = open_checkpoint(f"hf://org/model/sub/{TWO}")
    assert list(got.tensors) == ["c"]
    assert got.root.endswith("/sub")


def test_contradictions_and_what_is_not_there(hub: LoopbackHub, tmp_path: Path) -> None:
    hub.add("org/model", model(tmp_path / "m"))
    with pytest.raises(UsageProblem, match="--revision"):
        open_checkpoint("org/model@main", revision="v1")
    with pytest.raises(UsageProblem, match="Hub"):
        open_checkpoint(str(tmp_path / "m"), revision="v1")
    assert hub.log == []
    with pytest.raises(SourceNotFound, match="no revision 'v9'"):
        open_checkpoint("org/model@v9")
    with pytest.raises(SourceNotFound, match="no repository hf://org/other") as e:
        open_checkpoint("org/other")
    assert "HF_TOKEN" in str(e.value.hint)  # it may be private
    with pytest.raises(SourceNotFound, match=r"no file 'x\.safetensors'"):
        open_checkpoint("hf://org/model/x.safetensors")
    with pytest.raises(SourceNotFound, match="no file") as e:
        open_checkpoint(f"hf://org/model/{ONE.replace('l-', 'll-')}")
    assert e.value.hint == f"did you mean '{ONE}'?"
    for source in ("org/model", "hf://org/model", "s3://bucket/x", "http://127.0.0.1:1/x"):
        with pytest.raises(Unsupported, match="this command reads no"):
            open_checkpoint(source, local=True)


def test_what_a_user_meant_as_a_local_path_asks_nobody(
    hub: LoopbackHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "models").mkdir()
    monkeypatch.chdir(tmp_path)
    for source in (
        "dir/model.safetensors", "dir/x.gguf", "dir/model.onnx", "./org/model", "/org/model",
        "models/model", "a/b/c", "name",
    ):  # fmt: skip
        with pytest.raises(SourceNotFound):
            open_checkpoint(source)
    assert hub.log == []


def test_an_index_that_names_what_the_listing_lacks(hub: LoopbackHub, tmp_path: Path) -> None:
    folder = model(tmp_path / "m")
    shard(folder / "extra.safetensors", "d")
    (folder / TWO).unlink()
    hub.add("org/model", folder)
    got = open_checkpoint("org/model")
    assert got.missing == ["c"]
    assert [p.code for p in got.problems] == ["missing-shard", "unlisted-file"]
    assert not any(TWO in path for path in hub.paths())  # the listing said so


def test_without_an_index(hub: LoopbackHub, tmp_path: Path) -> None:
    folder = model(tmp_path / "m")
    (folder / INDEX).unlink()
    hub.add("org/model", folder)
    require_same(open_checkpoint("org/model"), folder)


def test_a_package(hub: LoopbackHub, tmp_path: Path) -> None:
    (tmp_path / "p" / "encoder").mkdir(parents=True)
    (tmp_path / "p" / "package.json").write_text("{}")
    shard(tmp_path / "p" / "encoder" / "model.safetensors", "w")
    hub.add("org/package", tmp_path / "p")
    got = open_checkpoint("org/package")
    assert (got.format, list(got.tensors)) == ("package", ["encoder/w"])


@pytest.mark.parametrize("over", range(-9, 2))
def test_header_lengths_around_the_prefetch(over: int, hub: LoopbackHub, tmp_path: Path) -> None:
    """Header and the eight bytes of its length end `over` bytes after the first request does."""
    folder = tmp_path / "m"
    folder.mkdir()
    rows = {"w": entry("U8", [300_000], 0, 300_000)}
    plain = len(json.dumps(rows).encode())
    padding = b" " * (PREFETCH + over - 8 - plain)
    write(folder / "model.safetensors", rows, 300_000, padding)
    hub.add("org/model", folder)
    got = open_checkpoint("org/model")
    require_same(got, folder)
    assert got.requests == (2 if over <= 0 else 3)
    # the second request brings exactly what the first did not
    ranges = [r.fields["range"] for r in hub.log[1:]]
    assert ranges[0] == f"bytes=0-{PREFETCH - 1}"
    assert ranges[1:] == ([] if over <= 0 else [f"bytes={PREFETCH}-{PREFETCH + over - 1}"])
    assert hub.sent - hub.log[0].sent == PREFETCH + max(0, over)


@pytest.mark.parametrize("over", range(-9, 2))
def test_header_lengths_around_what_an_index_lets_expect(
    over: int, hub: LoopbackHub, tmp_path: Path
) -> None:
    folder = tmp_path / "m"
    folder.mkdir()
    names = [f"layers.{i}.weight" for i in range(20)]
    expected = expected_headers({ONE: names})[ONE]
    rows = {n: entry("U8", [4], 4 * i, 4 * i + 4) for i, n in enumerate(names)}
    # the file is longer than the first request
    rows["layers.19.weight"] = entry("U8", [90_004], 76, 90_080)
    padding = b" " * (expected + over - 8 - len(json.dumps(rows).encode()))
    write(folder / ONE, rows, 90_080, padding)
    index(folder / INDEX, dict.fromkeys(names, ONE))
    hub.add("org/model", folder)
    got = open_checkpoint("org/model")
    require_same(got, folder)
    asked = [r.fields["range"] for r in hub.log if r.path.endswith(ONE)]
    assert asked[0] == f"bytes=0-{expected - 1}"
    assert asked[1:] == ([] if over <= 0 else [f"bytes={expected}-{expected + over - 1}"])


def test_expected_headers_fit_what_writers_make() -> None:
    import struct

    from ntool.lib import demo

    folder = Path(demo.path("shapes"))
    named = read_index(LocalFolder(str(folder)), INDEX).by_file
    assert len(named) > 1
    for file, expected in expected_headers(named).items():
        (length,) = struct.unpack("<Q", (folder / file).read_bytes()[:8])
        assert length + 8 <= expected <= 1.4 * length + 600, file


def test_131_shards_cost_135_requests(hub: LoopbackHub, tmp_path: Path) -> None:
    folder = tmp_path / "m"
    folder.mkdir()
    named: dict[str, str] = {}
    for i in range(131):
        file = f"model-{i + 1:05d}-of-00131.safetensors"
        names = [f"model.layers.{i}.mlp.experts.{e}.gate_proj.weight" for e in range(i % 40 + 1)]
        shard(folder / file, *names, dtype="F32", shape=(8, 16))
        named.update(dict.fromkeys(names, file))
    index(folder / INDEX, named)
    for name in ("config.json", "generation_config.json"):
        (folder / name).write_text("{}")
    hub.add("org/model", folder)
    got = open_checkpoint("org/model")
    require_same(got, folder)
    assert got.requests == len(hub.log) == 135
    headers = sum((folder / f).stat().st_size for f in got.files) - sum(
        t.nbytes for t in got.tensors.values()
    )
    listing = hub.log[0].sent
    assert hub.sent == got.bytes_read
    # a KB and a fifth more than the headers for each shard, at the most
    assert hub.sent - listing - got.index["nbytes"] < 1.2 * headers + 131 * 1024  # type: ignore[index]


def test_sixteen_in_flight_in_order_with_bounded_memory(hub: LoopbackHub, tmp_path: Path) -> None:
    import threading
    import time

    hub.add("org/model", model(tmp_path / "m"))
    folder, _ = open_hub(Address("org/model"), "org/model")
    at_once, most, done, lock = 0, 0, 0, threading.Lock()

    def slowly(reply: object, request: object, count: int) -> None:
        nonlocal at_once, most
        with lock:
            at_once += 1
            most = max(most, at_once)
        time.sleep(0.04)
        with lock:
            at_once -= 1

    hub.faults[f"hub:*{ONE}"] = slowly

    def read(name: str) -> str:
        nonlocal done
        with folder.open(ONE, 1) as f:
            f.read(0, 8)
        with lock:
            done += 1
        return name

    names = [str(i) for i in range(200)]
    results = iter(folder.each(read, names))
    assert next(results) == "0"
    time.sleep(0.3)
    assert done <= AHEAD + 1  # nobody takes the results, so no more is read
    assert list(results) == names[1:]
    assert IN_FLIGHT // 2 < most <= IN_FLIGHT
    with pytest.raises(ZeroDivisionError):
        list(folder.each(lambda name: 1 // (int(name) - 50), names))


def test_redirects_to_another_host_without_the_token(
    hub: LoopbackHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.redirects = True
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    folder = model(tmp_path / "m")
    hub.add("org/model", folder, token=TOKEN)
    require_same(open_checkpoint("org/model"), folder)
    assert [r for r in hub.log if r.port == CDN]
    for request in hub.log:
        if request.port == CDN:
            assert TOKEN not in str(request)
            assert "authorization" not in request.fields
        else:
            assert request.fields["authorization"] == f"Bearer {TOKEN}"


def test_no_token_is_sent_where_the_user_forbids_it(
    hub: LoopbackHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_IMPLICIT_TOKEN", True)
    hub.add("org/model", model(tmp_path / "m"))
    open_checkpoint("org/model")
    assert all("authorization" not in r.fields for r in hub.log)


def test_a_token_that_is_none(hub: LoopbackHub, monkeypatch: pytest.MonkeyPatch) -> None:
    for bad in ("se same", "ses\x01ame", "sésame"):
        monkeypatch.setenv("HF_TOKEN", bad)
        with pytest.raises(EnvironmentProblem, match="HF_TOKEN") as e:
            open_checkpoint("org/model")
        assert bad not in str(e.value)
    assert hub.log == []


def test_private_and_gated(
    hub: LoopbackHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = model(tmp_path / "m")
    hub.add("org/private", folder, token=TOKEN)
    hub.add("org/gated", folder, gated=True)
    with pytest.raises(SourceNotFound) as absent:
        open_checkpoint("org/private")
    assert "if it is private: set HF_TOKEN" in str(absent.value.hint)
    monkeypatch.setenv("HF_TOKEN", TOKEN[::-1])
    for source, words in (("org/private", "gives no access"), ("org/gated", "gated")):
        with pytest.raises(EnvironmentProblem, match=words) as e:
            open_checkpoint(source)
        assert "HF_TOKEN" in str(e.value.hint)
        assert TOKEN[::-1] not in str(e.value) + str(e.value.hint) + repr(e.value.__cause__)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    assert len(open_checkpoint("org/private").tensors) == 3


def test_a_listing_of_10_000_files(hub: LoopbackHub, tmp_path: Path) -> None:
    folder = model(tmp_path / "m")
    repository = hub.add("org/model", folder)
    others = [
        {"rfilename": f"logs/run-{i:05d}/events.out", "size": i, "blobId": commit_of(str(i))}
        for i in range(10_000)
    ]
    repository.listing = Repository(folder).siblings() + others
    got = open_checkpoint("org/model")
    require_same(got, folder)
    assert got.requests == 5


def test_names_of_a_listing_are_not_trusted(hub: LoopbackHub, tmp_path: Path) -> None:
    folder = model(tmp_path / "m")
    repository = hub.add("org/model", folder)
    wrong: list[object] = [
        "x.safetensors", 7, None, {"size": 3}, {"rfilename": 3}, {"rfilename": "../x.safetensors"},
        {"rfilename": "/x.safetensors"}, {"rfilename": "a\n.safetensors"},
        {"rfilename": "a\\b.safetensors"}, {"rfilename": ""}, {"rfilename": "z", "size": True},
        {"rfilename": "y", "size": -1}, {"rfilename": "v", "size": "3"},
    ]  # fmt: skip
    repository.listing = Repository(folder).siblings() + wrong  # type: ignore[operator]
    require_same(open_checkpoint("org/model"), folder)


def test_sizes_that_a_listing_does_not_have(hub: LoopbackHub, tmp_path: Path) -> None:
    folder = model(tmp_path / "m")
    repository = hub.add("org/model", folder)
    repository.listing = [{"rfilename": s["rfilename"]} for s in Repository(folder).siblings()]
    require_same(open_checkpoint("org/model"), folder)


def test_empty_files_of_unknown_size(hub: LoopbackHub, tmp_path: Path) -> None:
    folder = tmp_path / "m"
    folder.mkdir()
    (folder / "empty.safetensors").write_bytes(b"")
    repository = hub.add("org/model", folder)
    repository.listing = [{"rfilename": "empty.safetensors"}]

    def told(reply: Reply, request: Request, count: int) -> None:
        assert reply.status == 416
        reply.body = b"Requested Range Not Satisfiable"

    hub.faults["hub:*.safetensors"] = told
    require_same(open_checkpoint("org/model"), folder)


def test_a_truncated_upload_is_found_without_a_download(hub: LoopbackHub, tmp_path: Path) -> None:
    folder = tmp_path / "m"
    folder.mkdir()
    hole(folder / "model.safetensors", 300_000_000)
    with open(folder / "model.safetensors", "r+b") as f:
        f.truncate(200_000_000)
    hub.add("org/model", folder)
    got = open_checkpoint("org/model")
    require_same(got, folder)
    (problem,) = got.problems
    assert problem.code == "truncated"
    assert problem.message.startswith("file is short by 1000000")
    assert got.requests == 2 and hub.sent < 200_000


def test_a_file_over_its_limit_is_not_fetched(hub: LoopbackHub, tmp_path: Path) -> None:
    folder = model(tmp_path / "m")
    with open(folder / INDEX, "ab") as f:
        f.truncate(300_000_000)
    hub.add("org/model", folder)
    got = open_checkpoint("org/model")
    (problem,) = [p for p in got.problems if p.file == INDEX]
    assert "300000000" in problem.message
    assert not any(INDEX in path for path in hub.paths())
    assert list(got.tensors) == ["b", "a", "c"]  # of the files themselves


def test_endpoints() -> None:
    class Settings:
        ENDPOINT = ""

    for text, expected in (
        ("https://hub.example", "https://hub.example"),
        (" https://hub.example/ ", "https://hub.example"),
        ("", "https://huggingface.co"),
        ("  ", "https://huggingface.co"),
        (" /", "https://huggingface.co"),
    ):
        Settings.ENDPOINT = text
        assert endpoint(Settings) == expected
    for text in ("hub.example", "ftp://hub.example", "file:///x"):
        Settings.ENDPOINT = text
        with pytest.raises(EnvironmentProblem, match="HF_ENDPOINT"):
            endpoint(Settings)


def test_sniffing_is_as_for_local_files(hub: LoopbackHub, tmp_path: Path) -> None:
    folder = tmp_path / "m"
    folder.mkdir()
    (folder / "lfs.safetensors").write_bytes(
        b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n"
    )
    (folder / "empty.safetensors").write_bytes(b"")
    (folder / "short.safetensors").write_bytes(b"1234567")
    (folder / "page.safetensors").write_bytes(b"<!doctype html>" + b" " * 300_000)
    hub.add("org/model", folder)
    got = open_checkpoint("org/model")
    require_same(got, folder)
    assert {p.file for p in got.problems} == set(got.files)


def test_reads_beyond_and_inside_the_start() -> None:
    raw = bytes(range(256)) * 40
    asked: list[tuple[int, int]] = []

    class Part:
        total, identity = len(raw), "e"

        def __init__(self, data: bytes) -> None:
            self.data = data

    def fetch(offset: int, count: int) -> Part:
        asked.append((offset, count))
        return Part(raw[offset : offset + count])

    f = remote_file.RemoteFile("f", fetch, len(raw), 2000)
    assert f.read(0, 8) == raw[:8]
    assert f.read(8, 1000) == raw[8:1008]
    assert f.read(1990, 20) == raw[1990:2010]
    assert f.read(5000, 10) == raw[5000:5010]
    assert f.read(len(raw) - 5, 100) == raw[-5:]
    assert f.read(len(raw), 5) == f.read(len(raw) + 9, 5) == b""
    assert asked == [(0, 2000), (2000, 10), (5000, 10), (len(raw) - 5, 5)]
    assert f.bytes_read == 2025
