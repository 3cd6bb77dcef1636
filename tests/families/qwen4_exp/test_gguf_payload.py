"""Q52: the payload of a GGUF model is refused before any of it is read or downloaded."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from bench.gguf_files import write_set
from ntool.lib.checkpoint.folder import LocalFolder, Readable
from ntool.lib.checkpoint.gguf_cursor import BLOCK
from ntool.lib.checkpoint.source import open_checkpoint

from ...checkpoint.hub_fixtures import hub  # noqa: F401 (a fixture)
from ...checkpoint.loopback_hub import LoopbackHub
from ...conftest import DATA, Ended

GOLDEN = DATA / "qwen4-exp" / "gguf"
Ntool = Callable[..., Ended]
REASONS = (
    "one embedding of type GGUF:IQ4_NL",
    "banks of rank 3 of types GGUF:IQ1_S and GGUF:IQ4_NL",
    "dequantising is refused",
    "no substitute for these types",
)
COMMANDS: dict[str, tuple[str, ...]] = {
    "convert-fp8": ("convert-fp8", "SET", "--to", "bf16", "-o", "OUT"),
    "convert-fp8 --to fp8": ("convert-fp8", "SET", "--to", "fp8", "-o", "OUT"),
    "convert-fp8 --to qdq": ("convert-fp8", "SET", "--to", "qdq", "-o", "OUT"),
    "convert-experts": ("convert-experts", "SET", "--to", "split", "-o", "OUT"),
    "export-component": ("export-component", "SET", "-o", "OUT"),
    "run-prefill": ("run-prefill", "SET", "--prompt", "x"),
    "sample-image": ("sample-image", "SET", "--prompt", "x", "-o", "OUT"),
    "verify-package": ("verify-package", "PACKAGE", "--against", "SET"),
}


def called(ntool: Ntool, command: str, source: Path | str, package: Path, out: Path) -> Ended:
    """A command that needs the payload; it says no (5), and leaves nothing behind."""
    places: dict[str, Any] = {"SET": source, "PACKAGE": package, "OUT": out / "new"}
    done = ntool(*(places.get(word, word) for word in COMMANDS[command]), code=5)
    assert list(out.iterdir()) == []
    return done


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The set of 1,224 tensors, its 100 GB of payload a hole."""
    folder = tmp_path_factory.mktemp("published")
    write_set(folder, count=500)
    return folder


@pytest.fixture(scope="module")
def starts(published: Path) -> dict[str, int]:
    """Of each file where its payload begins."""
    found: dict[str, int] = {}
    for t in open_checkpoint(str(published)).tensors.values():
        found[t.file] = min(t.offset, found.get(t.file, t.offset))
    assert len(found) == 2
    return found


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int, int]]:
    """(file, offset, bytes) of what is read of GGUF files."""
    log: list[tuple[str, int, int]] = []
    usual = LocalFolder.open

    class Watched:
        def __init__(self, name: str, file: Readable) -> None:
            self._name, self._file = name, file

        def read(self, offset: int, count: int) -> bytes:
            log.append((self._name, offset, count))
            return self._file.read(offset, count)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._file, name)

    @contextmanager
    def watched(self: LocalFolder, name: str, expect: int = 0) -> Iterator[Any]:
        with usual(self, name, expect) as file:
            yield Watched(name, file) if name.endswith(".gguf") else file

    monkeypatch.setattr(LocalFolder, "open", watched)
    return log


@pytest.mark.parametrize("command", COMMANDS)
def test_reads_end_with_the_headers(
    published: Path, starts: dict[str, int], reads: list[tuple[str, int, int]],
    demo_package: Path, tmp_path: Path, ntool: Ntool, command: str,
) -> None:  # fmt: skip
    """Headers are read in blocks; no read begins behind them."""
    done = called(ntool, command, published, demo_package, tmp_path)
    for reason in REASONS:
        assert reason in done.err
    assert "102400491520 bytes as BF16 here" in done.err
    assert {name for name, _, _ in reads} >= starts.keys()
    for name, offset, count in reads:
        assert count <= BLOCK and offset < starts.get(name, 1 << 62)


@pytest.fixture(scope="module")
def headers_only(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The golden set, each file cut where its payload begins: there is no byte of it to read."""
    folder = tmp_path_factory.mktemp("gguf") / "set"
    folder.mkdir()
    whole = open_checkpoint(str(GOLDEN / "tiny-qwen4exp-00001-of-00003.gguf"))
    for name in whole.files:
        raw = (GOLDEN / name).read_bytes()
        offsets = [t.offset for t in whole.tensors.values() if t.file == name]
        (folder / name).write_bytes(raw[: min(offsets, default=len(raw))])
    cut = open_checkpoint(str(folder))
    assert {p.code for p in cut.problems} == {"truncated"} and not cut.tensors
    return folder


@pytest.mark.parametrize("command", COMMANDS)
def test_refused_where_there_is_no_payload(
    headers_only: Path, demo_package: Path, tmp_path: Path, ntool: Ntool, command: str
) -> None:
    """Whatever way a command has to its files: the refusal comes before it misses any."""
    done = called(ntool, command, headers_only, demo_package, tmp_path)
    assert "the payload of this GGUF model is not converted" in done.err


@pytest.mark.parametrize("command", COMMANDS)
def test_refused_before_a_download(
    hub: LoopbackHub,  # noqa: F811 (the fixture)
    published: Path, demo_package: Path, tmp_path: Path, ntool: Ntool, command: str,
) -> None:  # fmt: skip
    """From a web server come headers, or, where a command reads no remote source, nothing."""
    hub.add("org/model", published)
    address = f"{hub.address()}/org/model/resolve/main/model-00001-of-00003.gguf"
    out = tmp_path / "out"
    out.mkdir()
    done = called(ntool, command, address, demo_package, out)
    if hub.sent:
        assert REASONS[0] in done.err and REASONS[1] in done.err
        assert hub.sent < 400_000
    else:
        assert "this command reads no remote source" in done.err
