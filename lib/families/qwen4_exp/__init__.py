"""Qwen4-Exp: a decoder of gated delta-net and sparse-attention layers with n-gram embeddings.

Data only: `inspect-headers` and `census` read it without loading NumPy or ONNX.
"""

from __future__ import annotations

NAME = "qwen4_exp"
GGUF_ARCHITECTURES = ("qwen4exp",)
"""`general.architecture` of its GGUF sets."""
