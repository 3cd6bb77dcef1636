"""Qwen4-Exp: linear and sparse attention, routed experts, n-gram embeddings.

Data only: `census` reads it without loading NumPy or ONNX.
"""

from __future__ import annotations

from typing import Any

NAME = "qwen4_exp"
MODEL_TYPES = ("qwen4_exp", "qwen4_exp_text")
GGUF_ARCHITECTURES = ("qwen4exp",)
"""`general.architecture` of its GGUF sets."""
COMPONENTS = ("vision_encoder", "embedding", "decoder")
"""Of a checkpoint of text and pictures; of text alone there is the decoder."""
NOT_PROVIDED = {
    "mtp": "no authoritative forward and no cache interface exist for it",
    "video": "videos are not supported, pictures alone",
}
"""Components that somebody may ask for, and why there are none."""
GENERATION_COMPONENTS: tuple[str, ...] = ()
PIPELINES = ("chat",)
"""Tasks that a package can do."""
SEMANTIC_REFERENCE = {"repository": "huggingface/transformers", "revision": "5.24.0"}
"""Whose arithmetic the graphs reproduce."""
TOKENIZER_FILES = (
    (
        "tokenizer.json",
        "vocab.json",
        "merges.txt",
        "added_tokens.json",
        "tokenizer_config.json",
        "special_tokens_map.json",
        "chat_template.jinja",
    ),
    (),
)
"""Files that are copied if they are there, and those that must be: ids alone are enough to run."""


def text_only_by_default(config: dict[str, Any]) -> bool:
    """Whether a checkpoint that is exported on the way becomes a package of text alone: FP8 weights
    are exported without the vision encoder only."""
    return "quantization_config" in config and "vision_config" in config
