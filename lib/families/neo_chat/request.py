"""What a user asks for: a task with its prompt and pictures, and the finished query of each
branch."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...checkpoint.strict_json import has_lone_surrogate
from ...errors import InputError, UsageProblem
from ...suggestions import did_you_mean
from ...text.given import parse_tokens, read_list, read_text
from . import prompts
from .processor import pixel_limits

TASKS = ("chat", "text-to-image", "image-edit", "images-only", "unconditional", "interleave")
WITH_PICTURES = ("chat", "image-edit", "images-only", "interleave")
THINKING = ("text-to-image", "image-edit", "interleave")
BRANCH_TASKS = {"cond": THINKING, "img_cond": ("images-only",), "uncond": ("unconditional",)}
"""Which tasks' prefixes can serve as each branch of guidance."""


@dataclass(frozen=True)
class Request:
    """One prompt.

    Attributes:
        prompt: what the user typed; goes through the task's template.
        images: pictures, in the order of their placeholders.
        system: system text in place of the template's, or None.
        think: the model thinks before it draws.
        query: finished text that is taken as it is, or None.
        ids: token ids, or None.
        history: earlier (question, answer) turns; their placeholders come first.
        limits: (least, most) pixels of a picture in place of the task's, each or None.
    """

    task: str
    prompt: str = ""
    images: tuple[Path, ...] = ()
    system: str | None = None
    think: bool = False
    query: str | None = None
    ids: tuple[int, ...] | None = None
    history: tuple[tuple[str, str], ...] = ()
    limits: tuple[int | None, int | None] = (None, None)

    def __post_init__(self) -> None:
        if self.task not in TASKS:
            hint = did_you_mean(self.task, TASKS)
            raise UsageProblem("--task", found=self.task, expected=" or ".join(TASKS), hint=hint)
        if self.images and self.task not in WITH_PICTURES:
            raise UsageProblem(
                f"--image with task {self.task}", expected=f"task {' or '.join(WITH_PICTURES)}"
            )
        if self.task in ("image-edit", "images-only") and not self.images:
            raise UsageProblem(f"task {self.task} without a picture", expected="--image")
        if self.think and self.task not in THINKING:
            raise UsageProblem(f"--think with task {self.task}", expected=" or ".join(THINKING))
        if self.task in ("unconditional", "images-only") and (self.prompt or self.system):
            raise UsageProblem(f"task {self.task} takes no prompt and no system text")
        if not self.images and self.limits != (None, None):
            raise UsageProblem("--min-pixels and --max-pixels need --image")
        lo, hi = self.pixels()
        if lo > hi:
            raise UsageProblem("--min-pixels", found=lo, expected=f"<= --max-pixels {hi}")

    @property
    def finished(self) -> bool:
        """Whether the text or the ids are taken as they are, without a template."""
        return self.query is not None or self.ids is not None

    def pixels(self) -> tuple[int, int]:
        """(least, most) pixels of a picture after resizing."""
        task = self.task if self.task in WITH_PICTURES else "chat"
        lo, hi = pixel_limits(task, len(self.images))
        least, most = self.limits
        return least if least is not None else lo, most if most is not None else hi

    def template(self) -> str:
        """The task's query, `<image>` placeholders not yet expanded."""
        n = len(self.images)
        earlier = sum(q.count(prompts.PLACEHOLDER) for q, _ in self.history)
        own = n - earlier
        if own < 0:
            raise UsageProblem(
                f"messages: {prompts.PLACEHOLDER} placeholders", found=earlier, expected=f"<= {n}"
            )
        if self.task == "chat":
            question = self.prompt
            if self.history and own:
                question = prompts.place_images(question, own, labelled=False)
            return prompts.chat(question, own, history=self.history, system=self.system or "")
        if self.task == "unconditional":
            return prompts.unconditional()
        if self.task == "images-only":
            return prompts.images_only(n)
        more: dict[str, Any] = {"think": self.think, "history": self.history}
        if self.system is not None:
            more["system"] = self.system
        if self.task == "text-to-image":
            return prompts.text_to_image(self.prompt, **more)
        if self.task == "image-edit":
            return prompts.image_edit(self.prompt, own, **more)
        return prompts.interleave(self.prompt, own, **more)

    def branch(self, name: str) -> Request:
        """The request of a guidance branch of this one: itself, its pictures alone, or nothing."""
        if name == "cond":
            return self
        if name == "uncond" or not self.images:
            return Request("unconditional")
        return Request("images-only", images=self.images, limits=self.limits)


def from_options(
    task: str | None,
    *,
    prompt: str | None = None,
    prompt_file: Path | None = None,
    messages: Path | None = None,
    query: str | None = None,
    tokens: str | None = None,
    images: Sequence[Path] = (),
    system: str | None = None,
    think: bool = False,
    min_pixels: int | None = None,
    max_pixels: int | None = None,
) -> Request:
    """The request of the command-line options, of which exactly one says what the prompt is.

    Args:
        task: None takes `image-edit` with pictures and `text-to-image` without.
    Raises:
        UsageProblem: none or several prompts, or options that do not go together.
    """
    given = {
        "--prompt": prompt,
        "--prompt-file": prompt_file,
        "--messages": messages,
        "--query": query,
        "--tokens": tokens,
    }
    names = [k for k, v in given.items() if v is not None]
    needed = task not in ("unconditional", "images-only")
    if len(names) > 1 or (needed and not names):
        found = " and ".join(names) or "none"
        raise UsageProblem("prompt", found=found, expected=f"one of {', '.join(given)}")
    for name, given_text in {**given, "--system": system}.items():
        if isinstance(given_text, str) and has_lone_surrogate(given_text):
            raise InputError(f"{name}: not UTF-8")
    history: tuple[tuple[str, str], ...] = ()
    text = prompt or ""
    if prompt_file is not None:
        text = read_text(prompt_file)
    if messages is not None:
        m = read_messages(messages)
        if images or system is not None:
            raise UsageProblem("--messages names pictures and system text itself")
        text, history, system, images = m.prompt, m.history, m.system, m.images
    taken = query is not None or tokens is not None
    if taken and (system is not None or think):
        raise UsageProblem("--query and --tokens are taken as they are", expected="no template")
    return Request(
        task or ("image-edit" if images else "text-to-image"),
        prompt=text,
        images=tuple(images),
        system=system,
        think=think,
        query=query,
        ids=parse_tokens(tokens) if tokens is not None else None,
        history=history,
        limits=(min_pixels, max_pixels),
    )


@dataclass(frozen=True)
class Messages:
    """A conversation file: earlier turns, the open question, and all pictures in order."""

    history: tuple[tuple[str, str], ...]
    prompt: str
    system: str | None
    images: tuple[Path, ...]


def read_messages(path: Path) -> Messages:
    """A JSON list of `{"role", "text", "images"}`; the last one is the user's open question.

    Roles are `system` (first, optional), then `user` and `assistant` in turn. `images` are paths
    beside the messages file; a user's picture without an `<image>` placeholder goes in front.

    Raises:
        SourceNotFound, InputError: no such file; not that; names the message.
    """
    value = read_list(path, "messages")
    system = None
    rows = [_message(row, f"{path}: message {i}") for i, row in enumerate(value)]
    if rows[0][0] == "system":
        system = rows.pop(0)[1]
    roles = [r[0] for r in rows]
    if roles != [("user", "assistant")[i % 2] for i in range(len(rows))] or len(rows) % 2 == 0:
        raise InputError(
            f"{path}: roles",
            found=", ".join(roles) or "system alone",
            expected="user and assistant in turn, user last",
        )
    piped = str(path) == "-" or not path.is_file()  # a pipe lies beside no pictures
    base = Path(os.curdir) if piped else path.parent
    images: list[Path] = []
    said = []
    for i, (role, words, files) in enumerate(rows):
        if files and role != "user":
            raise InputError(f"{path}: message {i}: pictures of an assistant")
        images += [base / f for f in files]
        last = i == len(rows) - 1
        said.append(
            words if last or not files else prompts.place_images(words, len(files), labelled=False)
        )
    history = tuple(zip(said[0:-1:2], said[1::2], strict=True))
    return Messages(history, said[-1], system, tuple(images))


def _message(row: Any, where: str) -> tuple[str, str, Sequence[str]]:
    known = ("role", "text", "images")
    odd = [k for k in row if k not in known] if isinstance(row, dict) else [json.dumps(row)]
    if odd:
        raise InputError(where, found=odd[0][:80], expected=f"an object of {', '.join(known)}")
    role, text, images = row.get("role"), row.get("text"), row.get("images", [])
    if role not in ("system", "user", "assistant"):
        raise InputError(f"{where}: role", found=repr(role), expected="system, user or assistant")
    if not isinstance(text, str) or has_lone_surrogate(text):
        raise InputError(f"{where}: text", found=repr(text), expected="a string of UTF-8")
    if not isinstance(images, list) or not all(map(_is_path, images)):
        raise InputError(f"{where}: images", found=repr(images), expected="a list of paths")
    return role, text, images


def _is_path(value: Any) -> bool:
    return (
        isinstance(value, str)
        and value != ""
        and "\0" not in value
        and not has_lone_surrogate(value)
    )
