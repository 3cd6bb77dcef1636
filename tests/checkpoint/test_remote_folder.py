"""Sources on web servers and in what fsspec knows."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

from ntool.lib.checkpoint.source import local_wins, open_checkpoint
from ntool.lib.errors import EnvironmentProblem, SourceNotFound, Unsupported, UsageProblem

from .hub_fixtures import INDEX, ONE, TOKEN, TWO, hub, model, require_same
from .loopback_hub import LoopbackHub, Reply, Request

__all__ = ["hub"]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[str]:
    """The address of a checkpoint in the memory of fsspec."""
    import fsspec

    files = fsspec.filesystem("memory")
    where = f"/{uuid.uuid4().hex}"
    folder = model(tmp_path / "m")
    for path in folder.iterdir():
        files.pipe_file(f"{where}/m/{path.name}", path.read_bytes())
    yield f"memory:/{where}"
    files.rm(where, recursive=True)


def test_fsspec(store: str, tmp_path: Path) -> None:
    for source in (f"{store}/m", f"{store}/m/", f"{store}/m/{INDEX}"):
        got = open_checkpoint(source)
        require_same(got, tmp_path / "m")
        assert got.problems == [] and got.revision is None
        assert got.bytes_read > 300 and got.requests >= 5
    assert list(open_checkpoint(f"{store}/m/{TWO}").tensors) == ["c"]
    got = open_checkpoint(f"{store}/m")
    assert sum(map(len, got.bands(got.tensor("a"), 5))) == 16
    for source in (f"{store}/x", f"{store}/m/x.safetensors"):
        with pytest.raises(SourceNotFound):
            open_checkpoint(source)
    with pytest.raises(UsageProblem, match="Hub"):
        open_checkpoint(f"{store}/m", revision="v1")


def test_a_driver_s_errors_are_ours(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import fsspec

    def cat_file(*_: object, **__: object) -> bytes:
        raise RuntimeError("quota")

    monkeypatch.setattr(fsspec.get_filesystem_class("memory"), "cat_file", cat_file)
    with pytest.raises(EnvironmentProblem, match="RuntimeError: quota"):
        open_checkpoint(f"{store}/m")


def test_a_driver_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "s3fs", None)
    with pytest.raises(EnvironmentProblem, match="s3fs") as e:
        open_checkpoint("s3://bucket/model")
    assert "s3fs" in str(e.value.hint)


def test_no_such_scheme() -> None:
    with pytest.raises(Unsupported, match="nonsense://"):
        open_checkpoint("nonsense://bucket/model")


def test_file_addresses_are_paths(tmp_path: Path) -> None:
    folder = model(tmp_path / "a b")
    for source in (
        f"file://{quote(str(folder))}",
        f"file://localhost{folder}",
        f"local://{folder}",
    ):
        got = open_checkpoint(source)
        assert got.folder.local
        assert len(got.tensors) == 3
    # with the rules of paths: no link leads out
    (folder / TWO).unlink()
    (folder / TWO).symlink_to("/etc/passwd")
    codes = [p.code for p in open_checkpoint(f"file://{folder}").problems]
    assert "path-escape" in codes
    with pytest.raises(SourceNotFound):
        open_checkpoint("file:///nowhere/at/all")


def test_web_servers(hub: LoopbackHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    folder = model(tmp_path / "m")
    hub.add("org/model", folder)
    base = f"{hub.address()}/org/model/resolve/main"
    got = open_checkpoint(f"{base}/{INDEX}")
    assert got.tensors == open_checkpoint(str(folder)).tensors
    assert (got.problems, got.root, got.revision) == ([], base, None)
    assert got.config["model_type"] == "test"
    assert got.requests == len(hub.log)
    assert got.bytes_read == sum(r.sent for r in hub.log if r.status != 404)
    # index, config, no generation_config, two shards: each once
    assert got.requests == 5
    assert all("authorization" not in r.fields for r in hub.log)  # a token of the Hub's
    got = open_checkpoint(f"{base}/{TWO}?signature=secret")
    assert list(got.tensors) == ["c"]
    assert hub.log[-1].path.endswith("?signature=secret")
    with pytest.raises(SourceNotFound, match="404"):
        open_checkpoint(f"{base}/absent.safetensors")
    for source in (base + "/", hub.address(), f"{base}/a%2Fb"):
        with pytest.raises(Unsupported, match="without a file's name"):
            open_checkpoint(source)


def test_a_missing_shard_on_a_web_server(hub: LoopbackHub, tmp_path: Path) -> None:
    folder = model(tmp_path / "m")
    (folder / ONE).unlink()
    hub.add("org/model", folder)
    got = open_checkpoint(f"{hub.address()}/org/model/resolve/main/{INDEX}")
    assert got.missing == ["b", "a"]


@pytest.mark.parametrize("lost", [None, 1])
def test_a_split_gguf_set_on_a_web_server(
    hub: LoopbackHub, tmp_path: Path, lost: int | None
) -> None:
    """There is no listing: the other parts are asked for by their names."""
    golden = Path(__file__).parents[1] / "data" / "qwen4-exp" / "gguf"
    folder = tmp_path / "m"
    folder.mkdir()
    names = sorted(p.name for p in golden.glob("*.gguf"))
    for name in names:  # the folder has files of other kinds, which no listing shows
        shutil.copy(golden / name, folder)
    if lost is not None:
        (folder / names[lost]).unlink()
    hub.add("org/model", folder)
    got = open_checkpoint(f"{hub.address()}/org/model/resolve/main/{names[2]}")
    local = open_checkpoint(str(folder))
    assert got.tensors == local.tensors and list(got.files) == list(local.files)
    assert got.problems == local.problems
    told = [p.file for p in got.problems if p.code == "missing-shard"]
    assert told == ([] if lost is None else [names[lost]])


def test_a_password_in_an_address(hub: LoopbackHub, tmp_path: Path) -> None:
    hub.add("org/model", model(tmp_path / "m"))
    hub.redirects = True
    address = hub.address().replace("http://", "http://user:sesame@")
    got = open_checkpoint(f"{address}/org/model/resolve/main/{TWO}")
    assert "sesame" not in got.root
    first, *others = hub.log
    assert first.fields["authorization"] == "Basic dXNlcjpzZXNhbWU="
    assert others and all("authorization" not in r.fields for r in others)

    def forbidden(reply: Reply, request: Request, count: int) -> None:
        reply.status = 403

    hub.faults["hub:*"] = forbidden
    with pytest.raises(EnvironmentProblem, match="403") as e:
        open_checkpoint(f"{address}/org/model/resolve/main/{TWO}")
    assert "sesame" not in str(e.value)


def test_proxies(hub: LoopbackHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loopback Hub as the proxy for a host that does not exist."""
    hub.add("org/model", model(tmp_path / "m"))
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://hub.invalid")
    monkeypatch.setenv("http_proxy", hub.address())
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    assert len(open_checkpoint("org/model").tensors) == 3
    assert hub.log[0].path.startswith("http://hub.invalid/api/models/org/model")
    monkeypatch.setenv("http_proxy", "socks5://127.0.0.1:1")
    with pytest.raises(Unsupported, match="socks5"):
        open_checkpoint("org/model")
    monkeypatch.setenv("NO_PROXY", "hub.invalid")
    monkeypatch.setattr("ntool.lib.checkpoint.ranges.TRIES", 1)
    with pytest.raises(EnvironmentProblem, match=r"hub\.invalid"):
        open_checkpoint("org/model")


def test_local_paths_win(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model(tmp_path / "org" / "model")
    monkeypatch.chdir(tmp_path)
    assert open_checkpoint("org/model").folder.local
    assert local_wins("org/model") == (
        "org/model: reading the local path; the repository on the Hub is hf://org/model"
    )
    for source in ("org/other", "./org/model", str(tmp_path / "org" / "model"), "demo:shapes", "-"):
        assert local_wins(source) is None
    with pytest.raises(SourceNotFound, match="no such file or folder in 'org'") as e:
        open_checkpoint("org/other")
    assert e.value.hint == "for the repository on the Hub: hf://org/other"
