"""Chat templates: where a tokenizer folder keeps its template, and rendering it safely.

A template is a program of a stranger. It is rendered by minijinja, which reaches no Python
attribute that begins with an underscore and no file, and in a process of its own with limits on
time and memory: nothing that a template does can do more than end that process.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ..checkpoint.paths import read_inside
from ..checkpoint.strict_json import has_lone_surrogate, load_object
from ..errors import EnvironmentProblem, InputError, shorten

JINJA = "chat_template.jinja"
CONFIG = "tokenizer_config.json"
MAX_TEMPLATE = 1 << 20
"""Bytes of a template; the longest public ones have some 20 KB."""
MAX_CONFIG = 256 << 20
MAX_TEXT = 16 << 20
"""Characters of a rendered prompt."""
FUEL = 20_000_000
"""Steps of the engine, which counts characters that are made as well."""
NBYTES = 1 << 30
SECONDS = 5
"""Most memory (of addresses) and time of the process that renders."""
GRACE = 2
"""Seconds that the process may wait for a processor."""
NAMED = ("bos_token", "eos_token", "pad_token", "unk_token")
"""Entries of tokenizer_config.json that a template knows as variables."""


@dataclass(frozen=True)
class Template:
    """A chat template.

    Attributes:
        name: the file that it is from.
        tokens: variables of the tokenizer, such as `eos_token`.
    """

    name: str
    source: str
    tokens: Mapping[str, str] = field(default_factory=dict)

    def render(self, **values: Any) -> str:
        """The prompt that the template makes of `messages` and further variables.

        Raises:
            InputError: the template raises an exception, is wrong, or takes too much.
            EnvironmentProblem: minijinja is not installed, or no process can be started.
        """
        # a template may ask whether these are none, and what is not given is not none
        usual = {**self.tokens, "tools": None, "documents": None}
        return render(self.source, {**usual, **values}, self.name)


def read_template(folder: str | os.PathLike[str]) -> Template | None:
    """The template of a tokenizer folder: chat_template.jinja, else `chat_template` of
    tokenizer_config.json (text, or of a list of named templates the one called `default`).

    Raises:
        InputError: not UTF-8, too long, a link that leads outside; or another form; names the file.
    """
    root = os.fspath(folder)
    raw = read_inside(root, CONFIG, MAX_CONFIG)
    path = os.path.join(root, CONFIG)
    config = load_object(raw, path) if raw is not None else {}
    tokens = _tokens(config)
    raw = read_inside(root, JINJA, MAX_TEMPLATE)
    if raw is not None:
        path = os.path.join(root, JINJA)
        try:
            return Template(path, raw.decode("utf-8"), tokens)
        except UnicodeDecodeError as e:
            raise InputError(f"{path}: not UTF-8 at byte {e.start}") from e
    value = config.get("chat_template")
    if value is None:
        return None
    where = f"{path}: chat_template"
    if isinstance(value, list):
        value = _default(value, where)
    if not isinstance(value, str) or has_lone_surrogate(value):
        raise InputError(where, found=shorten(repr(value), 80), expected="text of UTF-8, or a list")
    if len(value.encode()) > MAX_TEMPLATE:
        raise InputError(f"{where}: size", found=len(value), expected=f"<= {MAX_TEMPLATE}")
    return Template(path, value, tokens)


def _tokens(config: dict[str, Any]) -> dict[str, str]:
    found = {}
    for key in NAMED:
        value = config.get(key)
        if isinstance(value, dict):  # an added token with its flags
            value = value.get("content")
        if isinstance(value, str):
            found[key] = value
    return found


def _default(entries: list[Any], where: str) -> Any:
    found = {}
    for entry in entries:
        if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
            raise InputError(
                where, found=shorten(repr(entry), 80), expected="objects of name and template"
            )
        if entry["name"] in found:
            raise InputError(f"{where}: two templates of one name", found=repr(entry["name"]))
        found[entry["name"]] = entry.get("template")
    if "default" not in found:
        raise InputError(f"{where}: names", found=", ".join(found) or "none", expected="default")
    return found["default"]


def render(
    source: str,
    values: Mapping[str, Any],
    name: str,
    *,
    fuel: int = FUEL,
    nbytes: int = NBYTES,
    seconds: int = SECONDS,
) -> str:
    """The text that a template makes of JSON values.

    Args:
        name: how messages call the template.
        fuel, nbytes, seconds: what it may take.
    Raises: as `Template.render`.
    """
    found = find_spec("minijinja")
    if found is None or found.origin is None:
        raise EnvironmentProblem(
            f"{name}: package 'minijinja' is not installed",
            hint="pip install minijinja; or --query with the finished text",
        )
    job = {
        "template": source,
        "values": values,
        "packages": str(Path(found.origin).parents[1]),
        "fuel": fuel,
        "nbytes": nbytes,
        "seconds": seconds,
    }
    worker = str(Path(__file__).with_name("template_worker.py"))
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-S", worker],
            input=json.dumps(job).encode(),
            capture_output=True,
            timeout=seconds + GRACE,
            check=False,
        )
    except subprocess.TimeoutExpired as e:
        raise too_much(name, f"over {seconds} seconds", nbytes, seconds) from e
    except OSError as e:
        raise EnvironmentProblem(f"{name}: cannot start a process: {e.strerror or e}") from e
    answer = _answer(done.stdout)
    if answer is None:
        raise too_much(name, f"the renderer ended with {done.returncode}", nbytes, seconds)
    if "refused" in answer:
        raise InputError(f"{name}: the template refuses these messages: {answer['refused']}")
    if "error" in answer:
        message = answer["error"].split("\n")[0]  # what follows is a listing of the template
        if "out of fuel" in message or message == "MemoryError":
            raise too_much(name, message, nbytes, seconds)
        raise InputError(f"{name}: the template fails: {message}")
    text = answer["text"]
    if has_lone_surrogate(text):
        raise InputError(f"{name}: the template's text is not UTF-8")
    if len(text) > MAX_TEXT:
        raise too_much(name, f"{len(text)} characters", nbytes, seconds)
    return str(text)


def too_much(name: str, found: str, nbytes: int, seconds: int) -> InputError:
    """The error that an endless or huge template is."""
    return InputError(
        f"{name}: the template takes too much",
        found=found,
        expected=f"a text within {seconds} seconds and {nbytes >> 20} MiB",
        hint="--query takes the finished text",
    )


def _answer(raw: bytes) -> dict[str, str] | None:
    """What the worker wrote, or None where it was ended before it could."""
    try:
        answer = json.loads(raw)
    except ValueError:
        return None
    return answer if isinstance(answer, dict) else None
