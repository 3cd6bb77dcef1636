"""Renders one chat template in a process of its own; started by `chat_template.render`.

Run as a script, isolated and without site-packages: it imports nothing of ntool. Reads a JSON job
from standard input and writes a JSON answer to standard output, `text` or `error`. A template is a
stranger's: what its fuel does not stop (a list that is doubled forty times and then sorted) ends
with the memory or the time that the system lets this process have.
"""

from __future__ import annotations

import json
import os
import re
import sys
from typing import Any

OPEN = re.compile(r"\{\{|\{%|\{#")
RAW = re.compile(r"\{%[-+]?\s*raw\s*[-+]?%\}.*?\{%[-+]?\s*endraw\s*[-+]?%\}", re.S)
TOKEN = re.compile(
    r"""\s+|'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*"|[^\W\d]\w*|\d(?:\w|\.(?=\d))*|[-+]?[%}]\}|.""",
    re.S,
)
CLOSING = {")": "(", "]": "[", "}": "{"}
WORDS = frozenset(("and", "else", "if", "in", "is", "not", "or"))
"""Words that end no value: a bracket after one of them is no call."""
METHODS = frozenset(
    (
        *("casefold", "center", "expandtabs", "index", "isdecimal", "istitle", "ljust"),
        *("partition", "removeprefix", "removesuffix", "rindex", "rjust", "rpartition"),
        *("rsplit", "swapcase", "zfill"),
    )
)
"""Methods of Python's texts that the engine does not know."""
METHOD, TEXT, JSON = "method_of_text", "text_of_json", "json_of_value"
"""Filters that stand for these methods, and for `tojson` behind the engine's own and alone."""


class Refused(Exception):
    """What the template itself raised."""


def limit(nbytes: int, seconds: int) -> None:
    """Cap what this process may take; where the system has no such limits, its parent's clock
    serves."""
    try:
        import resource
    except ImportError:  # Windows
        return
    for what, most in (
        (resource.RLIMIT_AS, nbytes),
        (resource.RLIMIT_CPU, seconds),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, 0),
    ):
        try:
            resource.setrlimit(what, (most, most))
        except (OSError, ValueError):  # a lower one is in force already
            continue


def refuse(message: object = "") -> None:
    """`raise_exception` of chat templates."""
    raise Refused(str(message))


def json_of_value(
    value: Any,
    ensure_ascii: bool = False,
    indent: Any = None,
    separators: Any = None,
    sort_keys: bool = False,
) -> str:
    """`tojson` as chat templates know it: unlike that of the engine it escapes nothing for HTML."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=tuple(separators) if separators else None,
        sort_keys=sort_keys,
    )


def text_of_json(text: str, **options: Any) -> str:
    """The same from what the engine's `tojson` wrote: the value itself comes to a filter with
    whole floats turned into integers."""
    return json_of_value(json.loads(text), **options)


def method_of_text(value: Any, name: str, *arguments: Any, **named: Any) -> Any:
    """What a method of Python makes of a text."""
    if name not in METHODS or not isinstance(value, str | list | tuple):
        raise TypeError(f"{type(value).__name__} has no method named {name}")
    return getattr(value, name)(*arguments, **named)


def is_iterable(value: Any) -> bool:
    """Jinja's test; the engine's own holds for none too."""
    return hasattr(value, "__iter__")


def strftime_now(form: str) -> str:
    """The time of SOURCE_DATE_EPOCH, in UTC, else the local time."""
    from datetime import UTC, datetime

    epoch = os.environ.get("SOURCE_DATE_EPOCH")
    if epoch and not re.fullmatch(r"[0-9]{1,11}", epoch):
        raise ValueError(f"SOURCE_DATE_EPOCH: found {epoch[:40]!r}, expected seconds since 1970")
    now = datetime.fromtimestamp(int(epoch), UTC) if epoch else datetime.now()
    return now.strftime(form)


def adapted(source: str) -> str:
    """A template as the engine takes it: lines end in LF, as Jinja reads them, and in expressions
    filters stand for what the engine does not know or does differently."""
    source = re.sub(r"\r\n?", "\n", source)
    parts, at = [], 0
    while found := OPEN.search(source, at):
        start = found.start()
        parts.append(source[at:start])
        if found[0] == "{#":
            end = source.find("#}", found.end())
            at = len(source) if end < 0 else end + 2
        elif raw := RAW.match(source, start):
            at = raw.end()
        else:
            tokens, at = expression(source, found.end(), "}}" if found[0] == "{{" else "%}")
            parts += [found[0], *tokens]
            continue
        parts.append(source[start:at])
    return "".join([*parts, source[at:]])


def expression(source: str, at: int, close: str) -> tuple[list[str], int]:
    """The tokens of a block with its end, adapted, and the place in the source after it.

    `X.partition(Y)` becomes `(X|method_of_text('partition',Y))`, where X is what stands before the
    point without a space in its grammar: a name, a text or brackets, with members, calls and
    indices. `|tojson` becomes `|tojson|text_of_json`.
    """
    out: list[str] = []
    begins: dict[int, int] = {}  # of each token that ends a value: the one that begins it
    open_: list[tuple[int, bool]] = []  # where what a bracket belongs to begins; whether a method's
    seen: list[int] = [-1, -1, -1]  # the last tokens that are no space

    def word(back: int) -> str:
        return out[seen[-back]] if seen[-back] >= 0 else ""

    while found := TOKEN.match(source, at):
        token, here = found[0], len(out)
        if len(token) > 1 and token[-1] == "}":  # -}}, }}, %}
            if not open_ and token.endswith(close):
                return [*out, token], found.end()
            token = token[0]
        at = found.start() + len(token)
        out.append(token)
        if token.isspace():
            continue
        last, ended = seen[-1], begins.get(seen[-1])
        if token in CLOSING.values():
            name = token == "(" and word(2) == "." and word(1) in METHODS
            if name and ended is not None:
                out[seen[-2]], out[last], out[here] = "|", METHOD, f"('{word(1)}',"
                out[ended] = "(" + out[ended]
            open_.append((here if ended is None or token == "{" else ended, name))
        elif token in CLOSING and open_:
            begins[here], name = open_.pop()
            out[here] += ")" if name else ""
        elif token == ".":
            if ended is not None:
                begins[here] = ended  # passed on to the name after it
        elif token[0] in "'\"":
            begins[here] = here if ended is None or word(1)[0] not in "'\"" else ended
            if word(1) == "(" and word(2) == "map" and token[1:-1] == "tojson":
                out[here] = f"'{JSON}'"
        elif token.isidentifier():
            if word(1) == ".":
                begins[here] = begins.get(last, here)
            elif token not in WORDS and (close == "}}" or last >= 0):
                begins[here] = here
            if token == "tojson" and word(1) == "|":
                out[here] = f"tojson|{TEXT}"
            elif token == "tojson" and word(1) == "filter":
                out[here] = JSON
        elif token[0].isdigit():
            begins[here] = here
        seen = [*seen[-2:], here]
    return out, at


def render(job: dict[str, Any]) -> str:
    """The text of a template, in the settings that chat templates are written for."""
    import minijinja

    environment = minijinja.Environment(
        fuel=job["fuel"],
        debug=False,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=False,
        auto_escape_callback=lambda name: False,
    )
    for call in (json_of_value, text_of_json, method_of_text):
        environment.add_filter(call.__name__, call)
    environment.add_filter("wordcount", lambda text: len(re.findall(r"\w+", str(text))))
    environment.add_filter("center", lambda text, width=80: str(text).center(width))
    environment.add_test("iterable", is_iterable)
    environment.add_test("callable", callable)
    environment.add_global("raise_exception", refuse)
    environment.add_global("strftime_now", strftime_now)
    return str(environment.render_str(adapted(job["template"]), "template", **job["values"]))


def main() -> None:
    """Read a job from standard input, render it within its limits, write the answer."""
    job = json.load(sys.stdin)
    sys.path.append(job["packages"])
    import minijinja

    limit(job["nbytes"], job["seconds"])
    answer: dict[str, Any]
    try:
        answer = {"text": render(job)}
    except Refused as e:
        answer = {"refused": str(e)}
    except minijinja.TemplateError as e:
        answer = {"error": str(e)}
    except (MemoryError, RecursionError) as e:
        answer = {"error": type(e).__name__}
    except (TypeError, ValueError, ArithmeticError, LookupError, AttributeError) as e:
        answer = {"error": f"{type(e).__name__}: {e}"}  # a method called with odd arguments
    sys.stdout.write(json.dumps(answer))
    sys.stdout.flush()


if __name__ == "__main__":
    main()
