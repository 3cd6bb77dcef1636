"""Q55 of the notes on Qwen4-Exp: without its backend a test skips before it makes a model."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ntool.lib.runtime import session

from .backends import missing_cuda

ROOT = Path(__file__).parents[1]
HOOK = """
from ntool.lib.runtime import session
from tests.conftest import pytest_collection_modifyitems

session.cuda_device_count = lambda: {devices}
session._has_provider = lambda: {provider}
"""
TEST = """
import pytest
from pathlib import Path

@pytest.fixture
def model():
    Path("made").touch()

@pytest.mark.gpu
def test_on_a_gpu(model):
    import torch
    assert torch.cuda.is_available()

def test_on_a_cpu():
    pass
"""
FRAMEWORK = "class cuda:\n    is_available = staticmethod(lambda: True)\n"


@pytest.mark.parametrize(
    "devices, provider, reason",
    [(0, True, "no CUDA device"), (1, False, "ONNX Runtime without its CUDA provider"),
     (1, True, None)],
)  # fmt: skip
def test_a_missing_backend_skips_before_anything_is_made(
    tmp_path: Path, devices: int, provider: bool, reason: str | None
) -> None:
    """A framework beside it that sees a GPU changes nothing."""
    (tmp_path / "conftest.py").write_text(HOOK.format(devices=devices, provider=provider))
    (tmp_path / "test_it.py").write_text(TEST)
    (tmp_path / "torch.py").write_text(FRAMEWORK)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = gpu: needs a CUDA device\n")
    command = [sys.executable, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider"]
    path = os.pathsep.join([str(ROOT), str(tmp_path)])
    done = subprocess.run(
        command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": path},
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "made").exists() == (reason is None)
    assert ("1 passed, 1 skipped" if reason else "2 passed") in done.stdout
    assert reason is None or reason in done.stdout


def test_what_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """This machine's driver and runtime; no session is made."""
    import onnxruntime as ort

    def refused(*_: object, **__: object) -> None:
        raise AssertionError("a session")

    monkeypatch.setattr(ort, "InferenceSession", refused)
    assert (missing_cuda() is None) == bool(session.cuda_device_count() and session._has_provider())
    monkeypatch.setattr(session, "cuda_device_count", lambda: 2)
    monkeypatch.setattr(ort, "get_available_providers", lambda: ["CPUExecutionProvider"])
    assert missing_cuda() == "ONNX Runtime without its CUDA provider"
