"""What huggingface_hub has downloaded is read where it lies; offline nothing else is."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ntool.lib.checkpoint.source import open_checkpoint
from ntool.lib.errors import EnvironmentProblem, InputError

from .hub_fixtures import INDEX, ONE, TWO, hub, model, require_same
from .loopback_hub import LoopbackHub, commit_of

__all__ = ["hub"]

COMMIT = commit_of("main")
SOCKETS = """
import sys
def hook(event, arguments):
    if event.startswith("socket."):
        print("SOCKET", event, arguments, file=sys.stderr)
sys.addaudithook(hook)
from ntool.guard import run
sys.exit(run(sys.argv[1:]))
"""


def download(hub: LoopbackHub, home: Path, **options: Any) -> Path:
    """A snapshot, made by huggingface_hub itself."""
    from huggingface_hub import snapshot_download

    return Path(
        snapshot_download(
            "org/model", cache_dir=home / "hub", endpoint=hub.address(), token=False, **options
        )
    )


def tree(folder: Path) -> dict[str, tuple[int, int]]:
    """All there is, with sizes and times."""
    return {
        str(p.relative_to(folder)): (p.lstat().st_size, p.lstat().st_mtime_ns)
        for p in folder.rglob("*")
    }


@pytest.fixture
def cached(hub: LoopbackHub, tmp_path: Path) -> Path:
    """A cache with `org/model`; the folder of its snapshot."""
    hub.add("org/model", model(tmp_path / "m"))
    snapshot = download(hub, tmp_path / "home")
    hub.log.clear()
    return snapshot


def test_the_real_client_reads_this_hub(hub: LoopbackHub, cached: Path, tmp_path: Path) -> None:
    from huggingface_hub import HfApi

    assert cached.name == COMMIT
    for name in (ONE, TWO, INDEX, "config.json"):
        assert (cached / name).is_symlink()
        assert (cached / name).read_bytes() == (tmp_path / "m" / name).read_bytes()
    hub.redirects = True
    headers = HfApi(endpoint=hub.address(), token=False).get_safetensors_metadata("org/model")
    ours = open_checkpoint(str(tmp_path / "m"))
    theirs = {n: t for f in headers.files_metadata.values() for n, t in f.tensors.items()}
    assert {n: (t.dtype, tuple(t.shape)) for n, t in theirs.items()} == {
        n: (t.dtype, t.shape) for n, t in ours.tensors.items()
    }


def test_cached_files_are_read_there(hub: LoopbackHub, cached: Path, tmp_path: Path) -> None:
    before = tree(tmp_path / "home")
    got = open_checkpoint("org/model")
    require_same(got, tmp_path / "m")
    assert (got.revision, got.requests) == (COMMIT, 1)  # the branch may have moved since
    (cached / TWO).unlink()
    hub.log.clear()
    require_same(open_checkpoint("org/model"), tmp_path / "m")
    assert [p.rpartition("/")[2] for p in hub.paths()[1:]] == [TWO]
    (cached / TWO).write_bytes(b"part")  # an unfinished copy
    require_same(open_checkpoint("org/model"), tmp_path / "m")
    (cached / TWO).unlink()
    before.pop(str((cached / TWO).relative_to(tmp_path / "home")))
    after = tree(tmp_path / "home")
    assert set(after) == set(before)
    folder = str(cached.relative_to(tmp_path / "home"))
    assert {k: v for k, v in after.items() if k != folder} == {
        k: v for k, v in before.items() if k != folder
    }


def test_another_commit_is_not_read_from_the_cache(
    hub: LoopbackHub, cached: Path, tmp_path: Path
) -> None:
    hub.repositories["org/model"].revisions["main"] = commit_of("later")
    got = open_checkpoint("org/model")
    assert (got.revision, got.requests) == (commit_of("later"), 5)


def test_nothing_is_written_into_the_cache(hub: LoopbackHub, tmp_path: Path) -> None:
    hub.add("org/model", model(tmp_path / "m"))
    open_checkpoint("org/model")
    assert not (tmp_path / "home").exists()


def offline(home: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """ntool in a process of its own, which says so whenever it uses a socket."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("HF_", "TRANSFORMERS"))}
    return subprocess.run(
        [sys.executable, "-c", SOCKETS, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        env={**kept, "HF_HOME": str(home), "HF_ENDPOINT": "http://127.0.0.1:9", **environment},
    )


@pytest.mark.parametrize("flag", ["HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"])
def test_offline_opens_no_socket(flag: str, cached: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    shutil.rmtree(tmp_path / "m")
    done = offline(home, "inspect-headers", "org/model", "--format", "jsonl", **{flag: "1"})
    assert (done.returncode, done.stderr) == (0, "")
    assert f'"revision":"{COMMIT}"' in done.stdout.splitlines()[0]
    assert done.stdout.count('"kind":"tensor"') == 3
    assert '"requests":0' in done.stdout.splitlines()[-1]


def test_the_hook_sees_sockets(tmp_path: Path) -> None:
    done = offline(tmp_path / "home", "census", "org/model", HF_HUB_DOWNLOAD_TIMEOUT="1")
    assert done.returncode == 6
    assert "SOCKET socket.connect" in done.stderr


def test_not_in_the_cache(cached: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    for arguments, words in (
        (["org/other"], "the repository is not in the cache"),
        (["org/model@v9"], "revision v9 is not in the cache"),
        ([f"org/model@{commit_of('x')}"], f"a snapshot of {commit_of('x')} is not in the cache"),
        ([f"hf://org/model/{'x' * 5}.safetensors"], "'xxxxx.safetensors' is not in the cache"),
    ):
        done = offline(home, "census", *arguments, HF_HUB_OFFLINE="1")
        assert done.returncode == 6, done
        message, hint = done.stderr.splitlines()
        assert "HF_HUB_OFFLINE is set" in message and words in message
        assert hint.startswith("hint: without HF_HUB_OFFLINE: hf download org/")


@pytest.fixture
def cut_off(cached: Path, hub: LoopbackHub, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache, offline, in this process."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    return cached


def test_revisions_offline(cut_off: Path, hub: LoopbackHub) -> None:
    refs = cut_off.parent.parent / "refs"
    assert (refs / "main").read_text() == COMMIT
    (refs / "pr").mkdir()
    (refs / "pr" / "1").write_text(COMMIT + "\n")
    for source in ("org/model", "org/model@main", f"org/model@{COMMIT}", "org/model@pr/1"):
        got = open_checkpoint(source)
        assert (got.revision, got.problems, len(got.tensors)) == (COMMIT, [], 3)
    assert list(open_checkpoint(f"hf://org/model/{TWO}").tensors) == ["c"]
    assert len(open_checkpoint(f"hf://org/model/{INDEX}").tensors) == 3
    # what only reads local files can read a cached one
    assert len(open_checkpoint("org/model", local=True).tensors) == 3
    (refs / "odd").write_text("../../../etc")
    with pytest.raises(InputError, match="expected a commit"):
        open_checkpoint("org/model@odd")
    (refs / "gone").write_text(commit_of("gone"))
    with pytest.raises(EnvironmentProblem, match="a snapshot of"):
        open_checkpoint("org/model@gone")
    assert hub.log == []


def test_a_partial_snapshot_names_what_is_missing(cut_off: Path) -> None:
    (cut_off / TWO).unlink()
    got = open_checkpoint("org/model")
    assert got.missing == ["c"]
    assert [(p.code, p.file) for p in got.problems] == [("missing-shard", TWO)]


def test_links_out_of_a_cached_snapshot_are_refused(cut_off: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes((cut_off / TWO).read_bytes())
    (cut_off / TWO).unlink()
    (cut_off / TWO).symlink_to(tmp_path / "secret")
    got = open_checkpoint("org/model")
    assert [(p.code, p.file) for p in got.problems if p.code == "path-escape"] == [
        ("path-escape", TWO)
    ]
    assert "c" not in got.tensors
