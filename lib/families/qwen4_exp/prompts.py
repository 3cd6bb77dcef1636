"""From conversations to token ids: the template, and the places of pictures."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...errors import InputError, UsageProblem
from ...text.chat_template import Template
from .request import Message, Request

TURN_START, TURN_END = "<|im_start|>", "<|im_end|>"


def placed(request: Request, placeholder: str | None) -> Request:
    """The request with a place in its conversations for each picture, and `images` in that order.

    A picture stands where a part of a content list or a placeholder in a text says. Those of a
    message's own `images` that its text has no placeholder for stand in front of it, the first ones
    first; so do those of --image of a single prompt. All other places take the next --image.

    Args:
        placeholder: None for a package without pictures, which whoever looks at them will say.
    Raises:
        UsageProblem: places without a picture, or pictures of --image without a place.
    """
    chats = [[_in_places(m, placeholder) for m in chat] for chat in request.chats]
    nameless = sum(files.count(None) for chat in chats for _, files in chat)
    spare = len(request.images) - nameless
    if spare > 0 and not request.file and (len(chats) == 1 or placeholder is None):
        last, its = chats[0].pop()
        chats[0].append((_in_front(last, spare), [*[None] * spare, *its]))
    elif spare and request.file:
        raise UsageProblem(
            f"{request.file}: pictures without a path",
            found=nameless,
            expected=f"{len(request.images)} of --image",
        )
    elif spare:
        raise UsageProblem(
            f"{'prompt' if len(chats) == 1 else 'several prompts'}: {placeholder} placeholders",
            found=nameless,
            expected=f"{len(request.images)}, the number of pictures",
        )
    given = iter(request.images)
    files = [file for chat in chats for _, some in chat for file in some]
    return replace(
        request,
        chats=tuple(tuple(m for m, _ in chat) for chat in chats),
        images=tuple(next(given) if file is None else file for file in files),
    )


def _in_places(message: Message, placeholder: str | None) -> tuple[Message, list[Path | None]]:
    """A message as templates know it, with a place for each picture of its own; and the file of
    each place, None where it names none."""
    content = message["content"]

    def marks(text: str) -> int:
        return 0 if placeholder is None else text.count(placeholder)

    bare = {k: v for k, v in message.items() if k != "images"}
    if not isinstance(content, str):
        files: list[Path | None] = []
        for part in content:
            image = part["type"] == "image"
            files += [part.get("image")] if image else [None] * marks(part["text"])
        parts = [{k: v for k, v in part.items() if k != "image"} for part in content]
        return {**bare, "content": parts}, files
    own = message.get("images", [])
    more = marks(content) - len(own)
    return _in_front(bare, -more), [*own, *[None] * more]


def _in_front(message: Message, count: int) -> Message:
    """A message with `count` pictures, if any, in front of what it says."""
    content = message["content"]
    if count <= 0:
        return message
    text = [{"type": "text", "text": content}] if isinstance(content, str) else content
    return {**message, "content": [{"type": "image"}] * count + text}


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
