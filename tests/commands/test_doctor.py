"""doctor and `--version --verbose`: facts, what is missing, and what must not be shown."""

from __future__ import annotations

from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import pytest

from ntool.lib import doctor

from ..conftest import Ended

Run = Callable[..., Ended]


def facts(done: Ended) -> dict[str, dict[str, object]]:
    return {r["name"]: r for r in done.of("fact")}


def test_everything_that_is_needed_is_there(
    ntool: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NTOOL_CACHE", str(tmp_path / "cache"))
    (tmp_path / "cache" / "a").mkdir(parents=True)
    (tmp_path / "cache" / "a" / "x").write_bytes(b"12345")
    (tmp_path / "cache" / "y").hardlink_to(tmp_path / "cache" / "a" / "x")  # counted once
    done = ntool("doctor")
    found = facts(done)
    assert found["numpy"]["value"] == metadata.version("numpy")
    assert "CPUExecutionProvider" in str(found["providers"]["value"])
    assert found[f"exports ({tmp_path / 'cache'})"]["value"] == 5
    assert int(str(found["cpu cores"]["value"])) >= 1
    assert done.of("summary")[0] == {"kind": "summary", "ok": True, "missing": []}
    assert {r["area"] for r in found.values()} == {
        "version", "device", "memory", "disk", "cache", "hub"
    }  # fmt: skip


def test_every_dependency_is_named() -> None:
    """What pyproject.toml asks for, and nothing else."""
    import re
    import tomllib

    root = Path(__file__).parents[2]
    asked = tomllib.loads((root / "pyproject.toml").read_text())["project"]["dependencies"]
    names = {re.split(r"[<>=;\[ ]", d)[0] for d in asked}
    assert names - set(doctor.RUNTIMES) == set(doctor.NEEDED)


def test_a_package_that_is_missing(ntool: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = doctor._version
    monkeypatch.setattr(doctor, "_version", lambda n: None if n == "gguf" else plain(n))
    done = ntool("doctor", code=6)
    assert "missing: gguf; pip install gguf" in done.err
    assert facts(done)["gguf"]["ok"] is False
    assert done.of("summary")[0]["missing"] == ["gguf"]


def test_what_extras_bring_is_no_failure(ntool: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each extra that pyproject.toml has for one package of its own."""
    import re
    import tomllib

    root = Path(__file__).parents[2]
    extras = tomllib.loads((root / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    plain = doctor._version
    monkeypatch.setattr(doctor, "_version", lambda n: None if n == "libcst" else plain(n))
    found = facts(ntool("doctor"))
    for extra, name in doctor.EXTRAS.items():
        assert [re.split(r"[<>=]", d)[0] for d in extras[extra]] == [name]
    assert found["matplotlib"]["ok"] is True
    assert (found["libcst"]["value"], found["libcst"]["ok"]) == (None, None)
    assert "pip install 'ntool[patchgen]'" in str(found["libcst"]["hint"])


def test_two_runtimes_are_one_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_version", lambda name: "1.0")
    found = {f.name: f for f in doctor.versions()}
    assert found["onnxruntime twice"].ok is False


def test_a_token_is_not_shown(ntool: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_sesame")
    done = ntool("doctor", "--verbose")
    assert facts(done)["token"]["value"] == "there"
    assert "sesame" not in done.out + done.err


def test_little_room_is_a_hint_and_no_failure(ntool: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "LITTLE_MEMORY", 1 << 60)
    found = facts(ntool("doctor"))
    assert found["available"]["ok"] is None and "stay in their files" in str(
        found["available"]["hint"]
    )


def test_libraries_are_looked_for_where_there_is_a_device(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from ntool.lib.runtime import session

    monkeypatch.setattr(session, "cuda_device_count", lambda: 1)
    monkeypatch.setattr(doctor, "CUDA_LIBRARIES", ("libc.so.6", "libnothing.so.1"))
    found = {f.name: f for f in doctor.devices()}
    assert found["libc.so.6"].ok is True
    assert found["libnothing.so.1"].ok is None and "ntool[cuda]" in str(
        found["libnothing.so.1"].hint
    )


@pytest.mark.parametrize("order", [("--version", "--verbose"), ("-v", "--version")])
def test_versions(ntool: Run, order: tuple[str, ...]) -> None:
    done = ntool(*order)
    lines = done.out.splitlines()
    assert lines[0].startswith("ntool ") and any(x.startswith("onnx ") for x in lines)
    assert len(lines) > 10
    assert len(ntool("--version").out.splitlines()) == 1


def test_verbose_alone_is_an_option_of_commands(ntool: Run) -> None:
    assert "options follow the command" in ntool("--verbose", "doctor", code=2).err
