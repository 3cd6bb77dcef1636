"""What a user asks for: rows of a batch, each a conversation, a finished text or token ids."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...checkpoint.strict_json import has_lone_surrogate
from ...errors import InputError, Unsupported, UsageProblem
from ...text.given import parse_rows, read_list, read_text

TASK = "chat"
NAME = "qwen4_exp"
SAMPLER = (
    *("size", "steps", "cfg", "img_cfg", "cfg_norm"),
    *("cfg_interval", "shift", "t_eps", "latent"),
)
DEFAULTS = {"seed": 42, "rng": "portable"}
"""Options of drawing, which packages of this family have no use for, and the values of those that
are never absent."""
GIVEN = ("prompt", "prompt_file", "messages", "query", "tokens")
"""Options of which exactly one says what the prompt is."""
ROLES = ("system", "user", "assistant", "tool")
MAX_ROWS = 4096

Message = dict[str, Any]
"""`role`, and `content`: a string, or a list of `{"type": "text", "text"}` and
`{"type": "image"}`. Until `prompts.placed` has said where each picture stands, an image of a list
may have its file, `image`, and a message may have files of pictures, `images`, beside a string."""


@dataclass(frozen=True)
class Request:
    """A batch of prompts of one kind.

    Attributes:
        chats: conversations, one a row; or
        query: one finished text; or
        ids: token ids, one sequence a row.
        prompt: what was typed, for the file's metadata.
        file: the conversation's file, or "" for prompts.
        images: pictures of --image. Once they are placed all pictures, in the order of their
            placeholders, row after row.
        think: the template's `enable_thinking`.
        limits: (least, most) pixels of a picture in place of the package's, each or None.
        pad: id at padded positions, or None for the package's.
    """

    chats: tuple[tuple[Message, ...], ...] = ()
    query: str | None = None
    ids: tuple[tuple[int, ...], ...] = ()
    prompt: tuple[str, ...] = ()
    file: str = ""
    images: tuple[Path, ...] = ()
    think: bool = False
    limits: tuple[int | None, int | None] = (None, None)
    pad: int | None = None

    @property
    def rows(self) -> int:
        """B, the number of sequences."""
        return len(self.chats) or len(self.ids) or 1

    @property
    def pictures(self) -> tuple[Path, ...]:
        """All pictures: those of --image, and those that messages name."""
        return (*self.images, *(p for chat in self.chats for m in chat for p in named(m)))


def named(message: Message) -> list[Path]:
    """The files of pictures that a message names itself, in order."""
    content = message["content"]
    parts = () if isinstance(content, str) else content
    return [*message.get("images", ()), *(p["image"] for p in parts if "image" in p)]


def from_options(o: Mapping[str, Any]) -> Request:
    """The request that run-prefill's options give, by their names.

    Raises:
        UsageProblem: none or several prompts; options that do not go together, or that this family
            has no use for.
        SourceNotFound, InputError: a file that is not there, or is not what it should be.
    """
    _refuse_other_options(o)
    names = [k for k in GIVEN if o[k] is not None]
    if len(names) != 1:
        spelled = [f"--{k.replace('_', '-')}" for k in (names or GIVEN)]
        found = " and ".join(spelled) if names else "none"
        expected = ", ".join(f"--{k.replace('_', '-')}" for k in GIVEN)
        raise UsageProblem("prompt", found=found, expected=f"one of {expected}")
    typed = tuple(o["prompt"] or ())
    for name, text in [("--prompt", t) for t in typed] + [
        (f"--{k}", o[k]) for k in ("system", "query", "tokens")
    ]:
        if isinstance(text, str) and has_lone_surrogate(text):
            raise InputError(f"{name}: not UTF-8")
    finished = o["query"] is not None or o["tokens"] is not None
    if finished and (o["system"] is not None or o["think"]):
        raise UsageProblem("--query and --tokens are taken as they are", expected="no template")
    images = tuple(o["image"] or ())
    rest: dict[str, Any] = {
        "think": o["think"],
        "limits": (o["min_pixels"], o["max_pixels"]),
        "pad": o["pad"],
    }
    if o["query"] is not None:
        return _checked(Request(query=o["query"], images=images, **rest))
    if o["tokens"] is not None:
        ids = tuple(parse_rows(o["tokens"]))
        if len(ids) > MAX_ROWS:
            raise UsageProblem("--tokens: rows", found=len(ids), expected=f"<= {MAX_ROWS}")
        return _checked(Request(ids=ids, images=images, **rest))
    if o["messages"] is not None:
        if o["system"] is not None:
            raise UsageProblem("--messages names system text itself")
        chat = read_messages(o["messages"])
        file = str(o["messages"])
        return _checked(Request(chats=(chat,), file=file, images=images, **rest))
    if o["prompt_file"] is not None:
        typed = (read_text(o["prompt_file"]),)
    system = [{"role": "system", "content": o["system"]}] if o["system"] else []
    chats = tuple((*system, {"role": "user", "content": text}) for text in typed)
    return _checked(Request(chats=chats, prompt=typed, images=images, **rest))


def _refuse_other_options(o: Mapping[str, Any]) -> None:
    if o["task"] != TASK:
        raise UsageProblem(f"--task with a package of {NAME}", found=o["task"], expected=TASK)
    used = [k for k in SAMPLER if o[k] is not None]
    used += [k for k, default in DEFAULTS.items() if o[k] != default]
    if used:
        spelled = ", ".join(f"--{k.replace('_', '-')}" for k in used)
        raise UsageProblem(f"{spelled} with a package of {NAME}, which draws no pictures")


def _checked(request: Request) -> Request:
    lo, hi = request.limits
    if not request.pictures and (lo, hi) != (None, None):
        raise UsageProblem("--min-pixels and --max-pixels need --image")
    if lo is not None and hi is not None and lo > hi:
        raise UsageProblem("--min-pixels", found=lo, expected=f"<= --max-pixels {hi}")
    return request


def read_messages(path: Path) -> tuple[Message, ...]:
    """A JSON list of messages.

    A message has `role` and `content`: text, or a list of `{"type": "text", "text": ...}` and
    `{"type": "image"}`, whose `image` names a picture beside the messages file. `text` and `images`
    (a list of paths) stand for a `content` too; `reasoning_content` goes to the template as it is.

    Raises:
        SourceNotFound, InputError: no such file; not that; names the message.
    """
    rows = read_list(path, "messages")
    piped = str(path) == "-" or not path.is_file()  # a pipe lies beside no pictures
    folder = Path(os.curdir) if piped else path.parent
    chat = [_message(row, f"{path}: message {i}", folder) for i, row in enumerate(rows)]
    if chat[-1]["role"] not in ("user", "tool"):
        raise InputError(f"{path}: last message", found=chat[-1]["role"], expected="user")
    return tuple(chat)


KEYS = ("role", "content", "text", "images", "reasoning_content")


def _message(row: Any, where: str, folder: Path) -> Message:
    odd = [k for k in row if k not in KEYS] if isinstance(row, dict) else [json.dumps(row)]
    if odd:
        raise InputError(where, found=odd[0][:80], expected=f"an object of {', '.join(KEYS)}")
    role = row.get("role")
    if role not in ROLES:
        raise InputError(f"{where}: role", found=repr(role), expected=" or ".join(ROLES))
    if ("content" in row) == ("text" in row):
        raise InputError(where, found=", ".join(row), expected="one of content and text")
    reasoning = row.get("reasoning_content", "")
    if not _is_text(reasoning):
        raise InputError(f"{where}: reasoning_content", found=repr(reasoning), expected="text")
    if "content" in row and "images" in row:
        raise InputError(f"{where}: images", expected="pictures in the content")
    images = row.get("images", [])
    if not isinstance(images, list) or not all(map(_is_path, images)):
        raise InputError(f"{where}: images", found=repr(images), expected="a list of paths")
    given = row["content"] if "content" in row else row["text"]
    parts = _parts([{"type": "text", "text": given}] if "text" in row else given, where)
    if role in ("system", "assistant") and (images or any(p["type"] == "image" for p in parts)):
        raise InputError(f"{where}: pictures of role {role}")
    for part in parts:
        if "image" in part:
            part["image"] = folder / part["image"]
    message = {"role": role, "content": given if isinstance(given, str) else parts}
    if "reasoning_content" in row:
        message["reasoning_content"] = reasoning
    if images:
        message["images"] = [folder / name for name in images]
    return message


def _parts(given: Any, where: str) -> list[dict[str, Any]]:
    """A content in parts."""
    given = [{"type": "text", "text": given}] if isinstance(given, str) else given
    if not isinstance(given, list) or not given:
        raise InputError(f"{where}: content", found=repr(given)[:80], expected="text, or a list")
    for part in given:
        kind = part.get("type") if isinstance(part, dict) else None
        fits = (kind == "text" and set(part) == {"type", "text"} and _is_text(part["text"])) or (
            kind == "image" and set(part) <= {"type", "image"} and _is_path(part.get("image", "x"))
        )
        if kind == "video":
            raise Unsupported(f"{where}: video is not supported", expected="pictures")
        if not fits:
            raise InputError(
                f"{where}: content",
                found=repr(part)[:80],
                expected='{"type": "text", "text": ...} or {"type": "image", "image": PATH}',
            )
    return [dict(p) for p in given]


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and not has_lone_surrogate(value)


def _is_path(value: Any) -> bool:
    return _is_text(value) and value != "" and "\0" not in value
