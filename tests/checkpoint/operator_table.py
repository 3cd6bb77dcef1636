"""Writes lib/checkpoint/onnx_operators.py from the installed onnx; a test compares the two.

After a newer onnx: python -m tests.checkpoint.operator_table
"""

from __future__ import annotations

from pathlib import Path

import onnx
from onnx import defs
from onnx.onnx_cpp2py_export import defs as compiled

FILE = Path(__file__).parents[2] / "lib" / "checkpoint" / "onnx_operators.py"
HEAD = '''"""Operators of the standard domains, newest opsets and IR version, as of onnx {version}.

Written by `python -m tests.checkpoint.operator_table`; not edited by hand.
"""

from __future__ import annotations

MADE_FROM = "{version}"
"""Version of onnx."""
IR_VERSION = {ir}
NEWEST: dict[str, int] = {{
{newest}}}
"""Newest opset of each standard domain."""

'''
TAIL = '''

def _read() -> dict[str, dict[str, int]]:
    """{domain: {operator: first opset that has it}}."""
    found: dict[str, dict[str, int]] = {}
    for line in _OPERATORS.splitlines():
        domain, _, operators = line.partition(":")
        into = found.setdefault(domain.strip(), {})
        into.update((name, int(n)) for name, n in (o.split("=") for o in operators.split()))
    return found


FIRST = _read()


def exists(op_type: str, version: int, domain: str) -> bool:
    """Whether an opset of a standard domain ("" is the default one) has an operator."""
    first = FIRST.get(domain, {}).get(op_type)
    return first is not None and version >= first
'''


def text() -> str:
    """The module, as it should be."""
    first: dict[str, dict[str, int]] = {}
    for schema in defs.get_all_schemas_with_history():
        known = first.setdefault(schema.domain, {})
        known[schema.name] = min(known.get(schema.name, 1000), schema.since_version)
    limits = {domain: newest for domain, (_, newest) in compiled.schema_version_map().items()}
    newest = "".join(f'    "{d}": {limits[d]},\n' for d in sorted(limits))
    lines = []
    for domain in sorted(first):
        line = f"{domain}:"
        for name in sorted(first[domain]):
            word = f" {name}={first[domain][name]}"
            if len(line) + len(word) > 99:
                lines.append(line)
                line = f"{domain}:"
            line += word
        lines.append(line)
    head = HEAD.format(version=onnx.__version__, ir=int(onnx.IR_VERSION), newest=newest)
    return head + '_OPERATORS = """\\\n' + "\n".join(lines) + '\n"""\n' + TAIL


if __name__ == "__main__":
    FILE.write_text(text())
