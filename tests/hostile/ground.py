"""The small odd files of tests/data/hostile: unpacked, put to use, and judged by their verdicts.

A vocabulary or a picture says nothing by itself: a vocabulary becomes that of a copy of the demo
package, a picture is given beside a prompt.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import tarfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from ..fork_server import Server, Watched

DATA = Path(__file__).parents[1] / "data" / "hostile"
ALL: list[dict[str, Any]] = json.loads((DATA / "manifest.json").read_text())["cases"]
COMMANDS = (
    *("inspect-headers", "census", "verify-package", "run-prefill", "sample-image"),
    *("export-component", "convert-fp8"),
)
LISTING = COMMANDS[:3]
"""What these found is said although a file is malformed, and their stream has an end."""
SECONDS, MEMORY = 10, 512 << 20
"""Limits of every call. The memory is that of the whole process, NumPy, ONNX and ONNX Runtime,
which the server has loaded whether the command needs them or not (about 190 MB), included."""
DIFFERENCES = ("ix-bad-missing-tensor", "fp-bad-grid-floor")
"""Sound files of which census finds that they do not fit each other: 1, not 3."""
UNPRINTABLE = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def unpack(folder: Path) -> Path:
    """The folder of all cases; dangling links and links that lead out are there on purpose."""
    with tarfile.open(DATA / "cases.tar.gz") as archive:
        archive.extractall(folder, filter="fully_trusted")
    return folder / "cases"


def with_vocabulary(package: Path, tokenizer: Path, out: Path) -> Path:
    """A copy of a package with another vocab.json and merges.txt. The added tokens keep their
    texts and get the ids behind the vocabulary, as in every tokenizer of this kind."""
    shutil.copytree(package, out)
    for name in os.listdir(out / "tokenizer"):
        (out / "tokenizer" / name).unlink()
    for name in ("vocab.json", "merges.txt"):
        shutil.copy(tokenizer / name, out / "tokenizer")
    config = json.loads((package / "tokenizer" / "tokenizer_config.json").read_text())
    # not parsed: a key may be there twice
    ids = re.findall(r":\s*(\d{1,18})", (tokenizer / "vocab.json").read_text())
    first = max(map(int, ids)) + 1
    tokens = [t for _, t in sorted(config["added_tokens_decoder"].items(), key=lambda i: int(i[0]))]
    config["added_tokens_decoder"] = {str(first + i): t for i, t in enumerate(tokens)}
    (out / "tokenizer" / "tokenizer_config.json").write_text(json.dumps(config))
    manifest = json.loads((package / "package.json").read_text())
    ids = {t["content"]: first + i for i, t in enumerate(tokens)}
    manifest["special_tokens"] = {t: ids[t] for t in manifest["special_tokens"]}
    (out / "package.json").unlink()
    (out / "package.json").write_text(json.dumps(manifest))
    return out


@dataclass
class Ground:
    """Where cases are run.

    Attributes:
        server, light: what answers calls; the light one those that read headers.
        cases: the folder of all cases.
        package: of the demonstration checkpoint.
        work: an empty folder for outputs; temporary files and the cache of exports lie beside it.
        outputs: what calls wrote, by command, for whom it may concern.
    """

    server: Server
    light: Server
    cases: Path
    package: Path
    work: Path
    temporary: Path
    packages: dict[str, Path] = field(default_factory=dict)

    def call(
        self, arguments: list[str], cwd: Path, inside: Path, more: tuple[Path, ...] = ()
    ) -> tuple[Watched, list[dict[str, Any]]]:
        """Run one command and hold it to what every call promises; returns its records too."""
        shutil.rmtree(self.work, ignore_errors=True)
        self.work.mkdir()
        writable = [self.work, self.temporary, *more]
        server = self.light if arguments[0] in COMMANDS[:2] else self.server
        done = server.watched([*arguments, "--format", "jsonl"], cwd, inside, writable)
        seen = f"{done.opened} {done.events} {done.seconds:.1f} s, {done.rss >> 20} MiB"
        label = f"{arguments}: exit {done.code}, {seen}\n{done.out[-2000:]}\n{done.err[-2000:]}"
        assert done.opened == [], label
        assert done.events == [], label
        assert done.seconds < SECONDS, label
        assert done.rss < MEMORY, label
        assert done.code in (0, 1, 3, 4, 5), label
        assert "Traceback" not in done.err, label
        assert not UNPRINTABLE.search(done.out + done.err), label
        lines = done.out.splitlines()
        records = [
            json.loads(line, parse_constant=lambda name: pytest.fail(label)) for line in lines
        ]
        if done.code:
            assert done.err.splitlines()[-1].startswith((f"ntool {arguments[0]}: ", "hint: ")), (
                label
            )
            told = any(r["kind"] == "error" or _failed(r) for r in records)
            assert told or not records, label
        return done, records

    def used(self, case: dict[str, Any], command: str, source: str) -> tuple[list[str], Path]:
        """The arguments that put a case to use with a command, and the folder that is read."""
        inside = self.cases / case["id"]
        out = str(self.work / "out")
        if command == "convert-fp8":
            return [command, source, "-o", out, "--to", "bf16"], inside
        if command == "export-component":
            return [command, source, "-o", out], inside
        if command not in ("run-prefill", "sample-image"):
            return [command, source], inside
        picture = [] if command == "run-prefill" else ["-o", f"{out}.png"]
        if picture:
            picture += ["--steps", "1", "--cfg", "1", "--size", "32x32"]
        if case["format"] == "png":
            prompt = ["--prompt", "a circle", "--image", source]
            return [command, str(self.package), *prompt, *picture], inside
        if case["format"] == "tokenizer":
            if case["id"] not in self.packages:
                out_folder = self.temporary / f"package-{case['id']}"
                found = with_vocabulary(self.package, inside, out_folder)
                self.packages[case["id"]] = found
            return [command, str(self.packages[case["id"]]), "--query", "hello", *picture], inside
        return [command, source, "--query", "hello", *picture], inside

    def judge(self, case: dict[str, Any], command: str, source: str, cwd: Path) -> None:
        """Run a case and hold the outcome to its verdict (where the case names the command)."""
        arguments, inside = self.used(case, command, source)
        more = (self.package,) if case["format"] == "png" else ()
        done, records = self.call(arguments, cwd, inside, more)
        named = command in case["subcommands"]
        verdict = case["verdict"] if named else "either"
        noted = [r for r in records if r.get("severity") in ("warning", "error")]
        told = [r for r in records if r["kind"] == "problem"]
        wrong = 1 if command == "verify-package" else 3
        if command == "census" and case["id"] in DIFFERENCES:
            wrong = 1
        label = f"{verdict}: exit {done.code}\n{done.out[-2000:]}\n{done.err[-2000:]}"
        if verdict.startswith("accept"):
            if command == "run-prefill" and case["format"] == "onnx":
                # read and found sound, but a graph alone is nothing that could be prefilled
                assert done.code == 4 and "config.json: no such file" in done.err, label
            else:
                assert done.code == 0, label
                # a graph of a Hub cache is sound; that onnx.load refuses its links is said
                linked = command == "verify-package" and "models--" in case["main"]
                assert bool(noted) is (verdict == "accept_warn" or linked), label
        elif verdict == "reject":
            assert done.code == wrong, label
        elif verdict == "difference":
            assert done.code in (wrong, 1 if command == "census" else wrong), label
        elif verdict == "refuse":
            assert done.code in (3, 5), label
        elif verdict == "warn_or_reject":
            assert done.code in (1, 3) or (done.code == 0 and told), label
        if done.code:
            assert os.listdir(self.work) == [], label
        elif named and command == "convert-fp8" and "dense_bf16_sha256" in case["expect"]:
            found = stored(self.work / "out", case["expect"]["tensor"])
            assert hashlib.sha256(found).hexdigest() == case["expect"]["dense_bf16_sha256"]
        if named or command in ("inspect-headers", "census"):
            for words in case["must_mention"]:
                assert re.search(words, done.out + done.err), label
        if done.code != 4 and command in LISTING:
            assert records[-1]["kind"] == "end", label
            self.expected(case, command, records)

    def expected(self, case: dict[str, Any], command: str, records: list[dict[str, Any]]) -> None:
        """The numbers that a case gives, of tensors or of orphan bytes."""
        expect = case["expect"]
        if command == "verify-package" and "orphan_bytes" in expect:
            warned = [r for r in records if r.get("severity") == "warning"]
            assert warned[0]["actual"] == expect["orphan_bytes"]
        if case["subcommands"] == ["verify-package"]:
            return
        want = {k: expect[k] for k in ("tensors", "params", "bytes", "missing") if k in expect}
        if command == "census":
            summary = next(r for r in records if r["kind"] == "summary")
            got = {**summary, "bytes": summary["nbytes"]}
        elif command == "inspect-headers":
            tensors = [r for r in records if r["kind"] == "tensor"]
            problems = [r for r in records if r["kind"] == "problem"]
            got = {
                "tensors": len(tensors),
                "params": sum(t["params"] for t in tensors),
                "bytes": sum(t["nbytes"] for t in tensors),
                "missing": [r["name"] for r in problems if "missing" in r["code"]],
            }
        else:
            return
        assert {k: got[k] for k in want} == want


def _failed(record: dict[str, Any]) -> bool:
    if record["kind"] == "check":
        return record["ok"] is False
    return record["kind"] == "problem" and record["severity"] == "error"


def stored(folder: Path, name: str) -> bytes:
    """Bytes of a tensor of a checkpoint, by its header alone."""
    for path in sorted(folder.glob("*.safetensors")):
        raw = path.read_bytes()
        start = 8 + int.from_bytes(raw[:8], "little")
        header = json.loads(raw[8:start])
        if name in header:
            a, b = header[name]["data_offsets"]
            return raw[start + a : start + b]
    raise KeyError(name)


def audited(arguments: list[str], cwd: Path, inside: Path) -> subprocess.CompletedProcess[bytes]:
    """A watched process of its own, watched from its first import on."""
    import sys

    script = str(Path(__file__).parents[1] / "audited.py")
    return subprocess.run(
        [sys.executable, script, str(inside), *arguments], cwd=cwd, capture_output=True, timeout=60
    )
