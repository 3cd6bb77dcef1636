"""From conversations to token ids: the template, and the places of pictures."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ...errors import InputError, UsageProblem
from ...text.chat_template import Template
from .request import Message

TURN_START, TURN_END = "<|im_start|>", "<|im_end|>"


def with_pictures(messages: Sequence[Message], count: int, placeholder: str) -> list[Message]:
    """The conversation with a picture in the content list for each that has no placeholder yet.

    They go in front of the text of the last user turn.

    Args:
        count: pictures of the conversation.
    Raises:
        UsageProblem: more placeholders than pictures.
    """
    there = sum(placeholders(m, placeholder) for m in messages)
    if there > count:
        raise UsageProblem(
            f"prompt: {placeholder} placeholders",
            found=there,
            expected=f"{count}, the number of pictures",
        )
    if there == count:
        return list(messages)
    *earlier, last = messages
    content = last["content"]
    text = [{"type": "text", "text": content}] if isinstance(content, str) else content
    return [*earlier, {**last, "content": [{"type": "image"}] * (count - there) + text}]


def placeholders(message: Message, placeholder: str) -> int:
    """Pictures that a message has a place for, in its content list or in its text."""
    content = message["content"]
    if isinstance(content, str):
        return content.count(placeholder)
    return sum(
        1 if part["type"] == "image" else part["text"].count(placeholder) for part in content
    )


def rendered(
    messages: Sequence[Message], template: Template | None, think: bool, picture: str
) -> str:
    """The finished text of a conversation, up to where the assistant answers.

    Args:
        template: the package's, or None for plain ChatML.
        picture: what stands for a picture in ChatML.
    Raises:
        UsageProblem: thinking without a template that knows of it.
        what `Template.render` raises.
    """
    if template is not None:
        return template.render(
            messages=list(messages), add_generation_prompt=True, enable_thinking=think
        )
    if think:
        raise UsageProblem("--think", expected="a package with a chat template")
    turns = [f"{TURN_START}{m['role']}\n{_said(m, picture)}{TURN_END}\n" for m in messages]
    return "".join(turns) + f"{TURN_START}assistant\n"


def _said(message: Message, picture: str) -> str:
    content: Any = message["content"]
    if isinstance(content, str):
        return content
    return "".join(picture if p["type"] == "image" else p["text"] for p in content)


def expand(
    rows: Iterable[Sequence[int]], image_token: int, counts: Sequence[int]
) -> list[list[int]]:
    """Ids in which each image token has become as many as its picture has tokens.

    Args:
        counts: tokens of each picture, row after row.
    Raises:
        InputError: another number of placeholders than of pictures.
    """
    rows = [list(r) for r in rows]
    found = sum(r.count(image_token) for r in rows)
    if found != len(counts):
        raise InputError(
            "prompt: places of pictures", found=found, expected=f"{len(counts)}, one a picture"
        )
    left = iter(counts)
    return [[i for i in r for i in ([i] * next(left) if i == image_token else [i])] for r in rows]
