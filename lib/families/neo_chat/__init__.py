"""SenseNova-U1/U1.5 (NEO-unify): one backbone that understands and draws, in pixel space.

Data only: `census` reads it without loading NumPy or ONNX.
"""

from __future__ import annotations

NAME = "neo_chat"
MODEL_TYPES = ("neo_chat",)
COMPONENTS = (
    "vision_encoder",
    "embedding",
    "decoder",
    "image_gen_embedding",
    "image_gen_denoiser",
)
GENERATION_COMPONENTS = ("image_gen_embedding", "image_gen_denoiser")
"""Components whose activations leave float16's range."""
PIPELINES = (
    "chat",
    "text-to-image",
    "image-edit",
    "images-only",
    "unconditional",
    "interleave",
)
"""Tasks that a package of all components can do."""
SEMANTIC_REFERENCE = {"repository": "OpenSenseNova/SenseNova-U1", "revision": None}
"""Whose arithmetic the graphs reproduce; no revision is published for it."""
