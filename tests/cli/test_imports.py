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
print("\\nLOADED", *{name.split(".")[0] for name in sys.modules}, file=sys.stderr)
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


def test_a_heavy_command_is_seen_as_such() -> None:
    assert {"numpy", "onnx"} <= loaded("export-component", "demo:shapes", "embedding", "--dry-run")
