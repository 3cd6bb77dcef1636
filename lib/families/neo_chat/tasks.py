"""The tasks of a package, as data: what is run once, what in the loop, which branches guide.

Source: docs/neo-chat.md, "Guidance" and "Sampling".
"""

from __future__ import annotations

from typing import Any

PREFILL = ["embedding", "decoder"]
LOOP: dict[str, Any] = {
    "each_step": ["image_gen_embedding"],
    "each_step_and_branch": ["image_gen_denoiser"],
    "state": "z",
    "prediction": "x0",
    "velocity": "(x0 - z) / max(1 - t, t_eps)",
    "update": "z + (t_next - t) * v",
}
EDIT_GUIDANCE = [
    {"when": "not (lo == 0 or lo < t < hi)", "v": "cond"},
    {"when": "cfg == 1 and img_cfg == 1", "v": "cond"},
    {"when": "img_cfg == 1", "v": "img_cond + cfg * (cond - img_cond)"},
    {"when": "cfg == img_cfg", "v": "uncond + cfg * (cond - uncond)"},
    {
        "when": "otherwise",
        "v": "uncond + cfg * (cond - img_cond) + img_cfg * (img_cond - uncond)",
    },
]
"""The first entry whose condition holds gives the velocity (docs/neo-chat.md 5.5)."""
TASKS: dict[str, dict[str, Any]] = {
    "chat": {
        "prefixes": {"cond": "chat"},
        "once": ["vision_encoder", *PREFILL],
        "decode": {"each_token": PREFILL, "stop_token": "<|im_end|>"},
    },
    "text-to-image": {
        "prefixes": {"cond": "text-to-image", "uncond": "unconditional"},
        "once": PREFILL,
        "loop": LOOP,
        "guidance": [
            {
                "when": "cfg > 1 and lo <= t <= hi",
                "v": "uncond + cfg * (cond - uncond)",
            },
            {"when": "otherwise", "v": "cond"},
        ],
    },
    "image-edit": {
        "prefixes": {
            "cond": "image-edit",
            "img_cond": "images-only",
            "uncond": "unconditional",
        },
        "once": ["vision_encoder", *PREFILL],
        "loop": LOOP,
        "guidance": EDIT_GUIDANCE,
    },
    "interleave": {
        "prefixes": {
            "cond": "interleave",
            "img_cond": "images-only",
            "uncond": "unconditional",
        },
        "once": ["vision_encoder", *PREFILL],
        "decode": {
            "each_token": PREFILL,
            "stop_token": "<|im_end|>",
            "picture_token": "<img>",
            "reencode": ["vision_encoder", *PREFILL],
        },
        "loop": LOOP,
        "guidance": EDIT_GUIDANCE,
    },
}
"""`workflow.tasks` of package.json: the same in every package of the family."""
