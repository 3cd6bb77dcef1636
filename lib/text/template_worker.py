"""Renders one chat template in a process of its own; started by `chat_template.render`.

Run as a script, isolated and without site-packages: it imports nothing of ntool. Reads a JSON job
from standard input and writes a JSON answer to standard output, `text` or `error`. A template is a
stranger's: what its fuel does not stop (a list that is doubled forty times and then sorted) ends
with the memory or the time that the system lets this process have.
"""

from __future__ import annotations

import json
import sys
from typing import Any


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


def to_json(
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
    environment.add_filter("tojson", to_json)
    environment.add_global("raise_exception", refuse)
    return str(environment.render_str(job["template"], "template", **job["values"]))


def main() -> None:
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
