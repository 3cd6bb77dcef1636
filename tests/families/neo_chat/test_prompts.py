"""Every recorded query string, byte for byte."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from ntool.lib.errors import InputError, UsageProblem
from ntool.lib.families.neo_chat import processor, prompts

COMMON = Path(__file__).parents[2] / "data/neo-chat/common"
CASES = json.loads((COMMON / "prompt_cases.json").read_text("utf-8"))["cases"]
PUBLISHED = json.loads((COMMON / "prompts.json").read_text("utf-8"))


def test_constants():
    assert PUBLISHED["system_message_generation"] == prompts.GENERATION_SYSTEM
    assert PUBLISHED["system_message_interleave_default"] == prompts.INTERLEAVE_SYSTEM
    special = dict(PUBLISHED["special_tokens"])
    assert special.pop("user_placeholder") == prompts.PLACEHOLDER
    assert special == prompts.SPECIAL_TOKENS
    assert PUBLISHED["templates"]["after_think"] == prompts.AFTER_THOUGHT


def queries(case):
    """Branch -> query, built the way the commands do."""
    n, think = case.get("n_images", 0), case.get("think_mode", False)
    task = {"edit": "image-edit", "vqa": "chat"}.get(case["task"], case["task"])
    counts = []
    for w, h in case.get("image_sizes", []):
        rw, rh = processor.resized(w, h, *processor.pixel_limits(task, n))
        counts.append(rw * rh // 32**2)
    if case["task"] == "edit":
        out = {
            "cond": prompts.image_edit(case["prompt"], n, think=think),
            "img_cond": prompts.images_only(n),
        }
    elif case["task"] == "interleave":
        out = {
            "cond": prompts.interleave(
                case["prompt"], n, think=think, system=case["system_message"]
            ),
            "text_uncond": prompts.images_only(n, interleave=True),
        }
    elif case["task"] == "vqa":
        history = [tuple(turn) for turn in case["history"] or []]
        return {"cond": prompts.expand(prompts.chat(case["question"], n, history=history), counts)}
    else:
        out = {"cond": prompts.text_to_image(case["prompt"], think=think)}
    out = {branch: prompts.expand(query, counts) for branch, query in out.items()}
    return out | {"uncond": prompts.unconditional()}


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c['task']}-{c.get('n_images', 0)}")
def test_recorded_queries(case):
    expected = {
        branch: re.sub(r"<IMG_CONTEXT>\*(\d+)", lambda m: "<IMG_CONTEXT>" * int(m.group(1)), query)
        for branch, query in case["queries"].items()
    }
    assert queries(case) == expected


def test_the_cases_cover_every_task():
    assert {c["task"] for c in CASES} == {"edit", "interleave", "vqa", "t2i"}


def test_more_placeholders_than_pictures():
    with pytest.raises(UsageProblem, match="found 2, expected at most 1"):
        prompts.image_edit("<image> and <image>", 1)
    with pytest.raises(UsageProblem, match="found 1, expected at most 0"):
        prompts.interleave("<image>", 0)


def test_expand_counts_and_reserved_token():
    assert prompts.expand("a<image>b<image>", [1, 2]) == (
        "a<img><IMG_CONTEXT></img>b<img><IMG_CONTEXT><IMG_CONTEXT></img>"
    )
    with pytest.raises(UsageProblem, match="found 1, expected 2"):
        prompts.expand("<image>", [1, 2])
    with pytest.raises(InputError, match="<IMG_CONTEXT>"):
        prompts.expand("a <IMG_CONTEXT>", [])


def test_a_placeholder_in_the_system_block_counts():
    query = prompts.chat("<image>", 1, system="like <image>")
    assert prompts.expand(query, [1, 2]).index("<IMG_CONTEXT>") < query.index("user")


def test_chat_without_pictures_has_no_placeholder():
    assert prompts.chat("hi") == ("<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n")
