"""What a test may need of a machine, told before the test makes anything."""

from __future__ import annotations

from ntool.lib.runtime import session


def missing_cuda() -> str | None:
    """Why no session can run on CUDA here, or None. Makes no session.

    The driver and ONNX Runtime are asked, and no other framework: one that sees a GPU is of no use
    to a runtime built without the provider.
    """
    if not session.cuda_device_count():
        return "no CUDA device"
    if not session._has_provider():
        return "ONNX Runtime without its CUDA provider"
    return None
