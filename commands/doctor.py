"""doctor: what this machine offers. Writes one `fact` for each thing, then `summary`."""

from __future__ import annotations

import typer

from ..console import console


def doctor() -> None:
    """Show what this machine offers: versions, providers, memory, disk, caches."""
    from ..lib.doctor import facts

    missing = []
    with console.stream(main="fact") as out:
        for fact in facts():
            if fact.ok is False:
                missing.append(fact)
            out.write(
                "fact",
                area=fact.area,
                name=fact.name,
                value=fact.value,
                ok=fact.ok,
                hint=fact.hint,
            )
        out.write("summary", ok=not missing, missing=[f.name for f in missing])
    if missing:
        console.say(f"missing: {', '.join(f.name for f in missing)}; {missing[0].hint}")
        raise typer.Exit(6)
