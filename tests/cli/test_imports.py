"""Light commands stay light: what they load, seen from inside a fresh process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

GGUF = str(Path(__file__).parents[1] / "data" / "qwen4-exp" / "gguf")

HEAVY = {
    "numpy", "onnx", "onnxruntime", "huggingface_hub", "PIL", "tokenizers", "gguf", "fsspec",
    "ml_dtypes", "safetensors", "jsonschema", "matplotlib", "tqdm", "rich", "pydantic", "requests",
    "httpx", "torch", "transformers", "asyncio", "ssl", "libcst",
}  # fmt: skip

LOADED = """
import sys
from ntool.guard import run
code = run(sys.argv[1:])
names = {n if n.startswith("ntool.") else n.split(".")[0] for n in sys.modules}
print("\\nLOADED", "ntool", *names, file=sys.stderr)
sys.exit(code)
"""


def loaded(*arguments: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", LOADED, *arguments], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout
    return set(done.stderr.rsplit("\nLOADED ", 1)[1].split())


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["--version"],
        ["census", "--help"],
        ["sample-image", "--help"],
        ["export-component", "--help"],
        ["verify-package", "--help"],
        ["patchgen", "--help"],
        ["patchgen", "generate", "--help"],
        ["inspect-headers", "demo:shapes"],
        ["inspect-headers", "demo:shapes", "--format", "table"],
        ["census", "demo:shapes"],
        ["census", "demo:shapes", "--by", "component", "--as-dtype", "F16"],
        ["inspect-headers", GGUF],
        ["census", GGUF],
        ["completion", "bash"],
    ],
    ids=lambda words: " ".join(words).replace(GGUF, "GGUF"),
)
def test_light_commands_load_nothing_heavy(arguments: list[str]) -> None:
    modules = loaded(*arguments)
    assert "ntool" in modules and "typer" in modules
    assert modules & HEAVY == set()


GGUF_READER = {"ntool.lib.checkpoint.gguf_set", "ntool.lib.checkpoint.gguf_header"}


@pytest.mark.parametrize("command", ["inspect-headers", "census"])
def test_only_what_a_source_needs(command: str) -> None:
    modules = loaded(command, "demo:shapes", "--format", "jsonl")
    assert "ntool.lib.checkpoint.safetensors_set" in modules
    assert not modules & {*GGUF_READER, "csv"}
    assert loaded(command, GGUF) >= GGUF_READER


def test_a_structure_check_loads_no_page_and_no_golden(tmp_path: Path) -> None:
    package = str(tmp_path / "p")
    loaded("export-component", "demo:shapes", "embedding", "-o", package)
    modules = loaded("verify-package", package, "--no-run", "--skip", "weights.*")
    assert "ntool.lib.package.checks.golden" in modules
    unused = {"report", "report_page", "golden_file", "golden_feeds", "checks.golden_values"}
    assert not modules & {f"ntool.lib.package.{name}" for name in unused}


def test_a_heavy_command_is_seen_as_such() -> None:
    assert {"numpy", "onnx"} <= loaded("export-component", "demo:shapes", "embedding", "--dry-run")
