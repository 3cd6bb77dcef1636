"""Commands on a loopback Hub, as real processes: exit codes, records and messages."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from ..checkpoint.hub_fixtures import ONE, TOKEN, TWO, hole, model
from ..checkpoint.loopback_hub import LoopbackHub, Reply, Request, commit_of
from ..conftest import Ended, run_ntool
from ..fp8 import fp8_files

COMMIT = commit_of("main")
Run = Callable[..., Ended]


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[LoopbackHub]:
    with LoopbackHub() as server:
        server.add("org/model", model(tmp_path / "m"))
        server.add("org/private", tmp_path / "m", token=TOKEN)
        server.add("org/gated", tmp_path / "m", gated=True)
        yield server


@pytest.fixture
def run(hub: LoopbackHub, tmp_path: Path) -> Run:
    def run(*arguments: str, **environment: str) -> Ended:
        settings = {"HF_TOKEN": "", "HF_HUB_DOWNLOAD_TIMEOUT": "1", "HF_HUB_OFFLINE": ""}
        env = {**hub.environment(tmp_path / "home"), **settings, **environment}
        return run_ntool(*arguments, env=env, cwd=tmp_path, timeout=30)

    return run


def test_inspect_headers(run: Run, hub: LoopbackHub) -> None:
    done = run("inspect-headers", "org/model", "--format", "jsonl")
    assert (done.code, done.err) == (0, "")
    (begin,), (end,) = done.of("begin"), done.of("end")
    assert (begin["source"], begin["revision"]) == ("org/model", COMMIT)
    assert (end["requests"], end["bytes_read"]) == (5, hub.sent)
    assert [t["name"] for t in done.of("tensor")] == ["b", "a", "c"]
    # through a pipe it is what census counts itself
    piped = run_ntool("census", "-", "--format", "jsonl", stdin=done.out)
    direct = run("census", "org/model", "--format", "jsonl")
    assert (direct.code, direct.err) == (0, "")
    assert direct.of("begin")[0]["revision"] == COMMIT
    assert direct.of("summary") == piped.of("summary")


def test_revisions_and_addresses(run: Run, hub: LoopbackHub) -> None:
    hub.repositories["org/model"].revisions["v1"] = commit_of("v1")
    for arguments in (["org/model@v1"], ["org/model", "--revision", "v1"], ["hf://org/model@v1"]):
        done = run("census", *arguments, "--format", "jsonl")
        assert done.code == 0, done.err
        assert done.of("begin")[0]["revision"] == commit_of("v1")
    done = run("inspect-headers", "org/model@main", "--revision", "v1")
    assert done.code == 2
    assert "--revision: found v1, expected main" in done.err
    assert run("census", "m", "--revision", "v1").code == 2
    assert run("census", "-", "--revision", "v1").code == 2


def test_two_revisions_against_each_other(run: Run, hub: LoopbackHub) -> None:
    done = run("census", "org/model", "--against", "m", "--format", "jsonl")
    assert done.code == 0, done.err


@pytest.mark.parametrize(
    "arguments, code, words",
    [
        (["org/absent"], 4, "no repository hf://org/absent"),
        (["org/model@v9"], 4, "no revision 'v9'"),
        (["hf://org/model/x.safetensors"], 4, "no file 'x.safetensors'"),
        (["m/absent.safetensors"], 4, "no such file"),
        (["org/gated"], 6, "gated: status 403"),
        (["hf://org/model/../x"], 2, "segment '..'"),
        (["hf://datasets/org/model"], 5, "datasets"),
        (["s3://bucket/model"], 6, "s3fs"),
        (["nonsense://bucket"], 5, "nonsense://"),
    ],
)
def test_what_is_not_there(arguments: list[str], code: int, words: str, run: Run) -> None:
    if "s3://" in arguments[0]:
        pytest.importorskip("fsspec")
        try:
            import s3fs  # noqa: F401
        except ImportError:
            pass
        else:
            pytest.skip("s3fs is installed")
    done = run("census", *arguments, "--format", "jsonl")
    assert done.code == code, done.err
    lines = done.err.splitlines()
    assert words in lines[0] and lines[0].startswith("ntool census: ")
    assert len(lines) == 1 or (len(lines) == 2 and lines[1].startswith("hint: "))
    error = done.records[-1]
    assert (error["kind"], error["code"]) == ("error", code)


def test_the_token_is_never_shown(run: Run, hub: LoopbackHub) -> None:
    hub.redirects = True
    good = run("inspect-headers", "org/private", "-v", "--format", "jsonl", HF_TOKEN=TOKEN)
    assert good.code == 0 and len(good.of("tensor")) == 3
    assert any(r.fields.get("authorization") == f"Bearer {TOKEN}" for r in hub.log)

    def wrong(reply: Reply, request: Request, count: int) -> None:
        reply.status = 401
        reply.fields = {"X-Error-Message": "Invalid credentials in Authorization header"}

    bad = TOKEN[::-1]
    hub.faults["hub:/api/*"] = wrong
    done = run("inspect-headers", "org/private", "-v", "--format", "jsonl", HF_TOKEN=bad)
    assert done.code == 6
    assert "the token gives no access" in done.err and "hint: set HF_TOKEN" in done.err
    assert "Traceback" in done.err  # of -v
    odd = run("inspect-headers", "org/private", "-v", HF_TOKEN="sesa\x07me")
    assert odd.code == 6
    for text in (good.out, good.err, done.out, done.err, odd.err):
        assert (
            TOKEN not in text and bad not in text and "me" not in text.split("HF_TOKEN: ")[-1][:3]
        )
    assert "sesa" not in odd.err


def test_network(run: Run, hub: LoopbackHub) -> None:
    def silent(reply: Reply, request: Request, count: int) -> None:
        reply.silent = True

    hub.faults[f"hub:*{ONE}"] = silent
    done = run("inspect-headers", "org/model", "--format", "jsonl")
    assert done.code == 6
    first, second = done.err.splitlines()
    assert ONE in first and "no answer in time" in first
    assert second == "hint: HF_HUB_DOWNLOAD_TIMEOUT is 1 seconds"


def test_a_truncated_upload(run: Run, hub: LoopbackHub, tmp_path: Path) -> None:
    (tmp_path / "short").mkdir()
    path = hole(tmp_path / "short" / "model.safetensors", 100_000_000)
    with open(path, "r+b") as f:
        f.truncate(90_000_000)
    hub.add("org/short", path.parent)
    for command in ("inspect-headers", "census"):
        hub.log.clear()
        done = run(command, "org/short", "--format", "jsonl")
        assert done.code == 3
        assert [p["code"] for p in done.of("problem")] == ["truncated"]
        assert "file is short by 10000" in done.err
        assert hub.sent < 200_000


def test_a_shard_that_is_gone(run: Run, tmp_path: Path) -> None:
    (tmp_path / "m" / TWO).unlink()
    remote = run("census", "org/model", "--format", "jsonl")
    local = run("census", str(tmp_path / "m"), "--format", "jsonl")
    assert remote.code == local.code
    assert remote.of("summary") == local.of("summary")


def test_an_existing_path_wins_and_says_so(run: Run, hub: LoopbackHub, tmp_path: Path) -> None:
    model(tmp_path / "org" / "model")
    for command in ("inspect-headers", "census"):
        done = run(command, "org/model", "--format", "jsonl")
        assert done.code == 0
        note = "reading the local path; the repository on the Hub is hf://org/model"
        assert done.err == f"ntool {command}: org/model: {note}\n"
        assert run(command, "org/model", "-q").err == ""
    assert hub.log == []


def test_commands_that_need_the_weights_say_so(run: Run, hub: LoopbackHub, tmp_path: Path) -> None:
    done = run("run-prefill", "org/model@v1", "--prompt", "a", "-o", str(tmp_path / "p"))
    assert done.code == 5
    assert "this command reads no repository" in done.err
    assert "hint: hf download org/model --revision v1 --local-dir DIR" in done.err
    assert hub.log == []


def test_settings_that_cannot_be_read(run: Run) -> None:
    done = run("census", "org/model", HF_HUB_DOWNLOAD_TIMEOUT="soon")
    assert done.code == 6 and "HF_HUB_DOWNLOAD_TIMEOUT" in done.err
    done = run("census", "org/model", HF_ENDPOINT="ftp://hub.example")
    assert done.code == 6 and "HF_ENDPOINT" in done.err
    assert run("census", "org/model", HF_ENDPOINT=" ", HF_HUB_OFFLINE="1").code == 6


@pytest.mark.parametrize("to", ["bf16", "fp8"])
def test_conversion_from_the_hub_is_that_of_the_folder(
    to: str, run: Run, hub: LoopbackHub, tmp_path: Path
) -> None:
    """Streamed range by range: a few requests, nothing in the cache, the same bytes."""
    source = fp8_files.checkpoint(tmp_path / "source", layers=6)
    if to == "fp8":
        assert run("convert-fp8", str(source), "-o", "dense").code == 0
        source = tmp_path / "dense"
    hub.add("org/fp8", source)
    options = ["--to", to, "--shard-size", "50KB", "-q"]
    before = hub.sent
    done = run("convert-fp8", "org/fp8", "-o", "remote", *options)
    assert (done.code, done.err) == (0, "")
    whole = sum(p.stat().st_size for p in source.iterdir())
    assert hub.sent - before < 3 * whole
    assert run("convert-fp8", str(source), "-o", "local", *options).code == 0
    remote, local = (fp8_files.digests(tmp_path / name) for name in ("remote", "local"))
    assert remote == local
    assert not any((tmp_path / "home").rglob("*.safetensors"))


def test_a_scale_that_is_no_number_ends_a_conversion_from_the_hub(
    run: Run, hub: LoopbackHub, tmp_path: Path
) -> None:
    source = fp8_files.checkpoint(tmp_path / "source", layers=1, files=1)
    path = source / "model-00001-of-00001.safetensors"
    tensors = fp8_files.read(path)
    name = "model.layers.0.mlp.down_proj.weight_scale_inv"
    tensors[name] = ("BF16", np.full_like(tensors[name][1], 0x7FC0))
    fp8_files.write(path, tensors)
    hub.add("org/nan", source)
    done = run("convert-fp8", "org/nan", "-o", "out")
    assert done.code == 3 and name in done.err and "not finite" in done.err
    assert not (tmp_path / "out").exists()
