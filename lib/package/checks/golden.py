"""golden.values: what components, prompts and recipes give is what golden files say."""

from __future__ import annotations

from .subject import Check, Finding, Subject, not_applicable


def values(subject: Subject) -> list[Finding]:
    """Every output of every golden, a finding each."""
    if not subject.options.goldens:
        return [not_applicable("no --golden FILE")]
    # other checks start quicker without what reads and compares arrays and pictures
    from . import golden_values

    return golden_values.values(subject)


CHECKS = (
    Check(
        "golden.values",
        "outputs are those of the golden files",
        values,
        ("layout.schema", "graph.names", "run.load"),
        package=True,
        plain=True,
    ),
)
