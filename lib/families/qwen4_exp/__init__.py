"""Qwen4-Exp: linear and sparse attention, routed experts, n-gram embeddings.

Data only: `census` reads it without loading NumPy or ONNX.
"""

from __future__ import annotations

NAME = "qwen4_exp"
MODEL_TYPES = ("qwen4_exp", "qwen4_exp_text")
GGUF_ARCHITECTURES = ("qwen4exp",)
"""`general.architecture` of its GGUF sets."""
