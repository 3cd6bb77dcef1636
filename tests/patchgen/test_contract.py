"""What changed under the patches of a config between two versions of a source module."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ntool.lib.errors import InputError
from ntool.lib.patchgen import contract, fingerprint, render, static
from ntool.lib.patchgen.definitions import shape
from ntool.lib.patchgen.discover import Found
from ntool.lib.patchgen.findings import Finding
from ntool.lib.patchgen.model import Plan
from ntool.lib.patchgen.source import parse

DATA = Path(__file__).parents[1] / "data" / "patchgen"
MINI = "upkit.models.mini.modeling_mini"


def plan_of_project(name: str) -> Plan:
    file = DATA / "project" / Path(*name.split(".")).with_suffix(".py")
    plan, problems = static.load(Found(file, name), [DATA / "project"]).plan("config")
    assert plan is not None and not problems
    return plan


def told(f: Finding) -> dict[str, Any]:
    """A finding in the form of expected.json."""
    named = {} if "target" in f.details else {"name": f.name}
    return {"code": f.code, **named, **f.details}


def in_order(found: list[dict[str, Any]]) -> list[str]:
    return sorted(json.dumps(x, sort_keys=True) for x in found)


def test_two_versions_of_the_mini_model() -> None:
    plan = plan_of_project("fixkit.models.mini.mini_all_patch_gen_config")
    old, new = (contract.version_below(DATA / "contract" / v, MINI) for v in ("old", "new"))
    expected = json.loads((DATA / "contract/expected.json").read_text())
    findings = contract.compare(plan, old, new)
    assert in_order([told(f) for f in findings]) == in_order(expected["findings"])
    assert not {f.name for f in findings} & set(expected["silent"])
    assert contract.compare(plan, old, old) == []
    assert contract.compare(plan, new, new) != []  # what is in neither is told all the same


HEAD = 'from patchgen import PatchConfig\nconfig = PatchConfig(source_module="kit.modeling")\n'


def compared(
    tmp_path: Path, old: str, new: str, config: str = "", target: str = "Gate.forward"
) -> list[Finding]:
    """Findings of a config (of one method patch without `config`) on two texts of its source."""
    default = f'@config.override_method("{target}")\ndef changed(self, values): return values\n'
    file = tmp_path / "one_patch_gen_config.py"
    file.write_text(HEAD + (config or default))
    plan, problems = static.load(Found(file, "one_patch_gen_config"), [tmp_path]).plan("config")
    assert plan is not None and not problems
    versions = []
    for name, text in (("old", old), ("new", new)):
        path = tmp_path / name / "modeling.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        versions.append(contract.version_below(path.parent, "kit.modeling"))
    findings = contract.compare(plan, *versions)
    # what a header keeps says the same about the targets
    head = render.header(plan, "kit==1", [], more=fingerprint.lines(plan, versions[0]))
    kept = fingerprint.stored(head + "\nimport os\n")
    assert len(kept) == len(plan.patches)
    again = contract.compare_facts(plan, kept, versions[1])
    around = ("anchor-missing", "import-not-dropped")
    assert [told(f) for f in again] == [told(f) for f in findings if f.code not in around]
    return findings


GATE = "class Gate:\n    def forward(self, values):\n        return values\n"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (GATE, "import os\n\n\n" + GATE),  # moved
        (GATE, GATE.replace("return", "# why\n        return")),
        (GATE, GATE.replace("        return", '        """What."""\n        return')),
        (GATE, GATE.replace("return values", "return (values)")),
        (GATE, GATE.replace("(self, values)", "(\n        self,\n        values,\n    )")),
        (GATE, GATE.replace("values):", "values: list) -> list:")),
        (GATE, GATE + "    def other(self): pass\n"),  # no target
        (GATE.replace("values\n", "'a' 'b'\n"), GATE.replace("values\n", '"ab"\n')),
        (GATE.replace("forward", "other"), GATE.replace("forward", "another")),  # in neither
    ],
)
def test_what_is_silent(tmp_path: Path, old: str, new: str) -> None:
    assert compared(tmp_path, old, new) == []


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        ("def forward(self, values, mask=None): return values",
         {"signature-changed": {"added": ["mask"], "removed": [], "reordered": False},
          "replacement-lacks-parameter": {"parameters": ["mask"]}}),
        ("def forward(self, mask, values): return values",
         {"signature-changed": {"added": ["mask"], "removed": [], "reordered": True},
          "replacement-lacks-parameter": {"parameters": ["mask"]}}),
        ("def forward(self): return values",
         {"signature-changed": {"added": [], "removed": ["values"], "reordered": False}}),
        ("def forward(values, self): return values",
         {"signature-changed": {"added": [], "removed": [], "reordered": True}}),
        ("def forward(self, values='a   b\\t\u2028'): return values",
         {"signature-changed": {"added": [], "removed": [], "reordered": False}}),
        ("def forward(self, values=None): return values",
         {"signature-changed": {"added": [], "removed": [], "reordered": False}}),
        ("def forward(self, *, values): return values",
         {"signature-changed": {"added": [], "removed": [], "reordered": False}}),
        ("def forward(self, values, /): return values",
         {"signature-changed": {"added": [], "removed": [], "reordered": False}}),
        ("def forward(self, values, **kwargs): return values",
         {"signature-changed": {"added": ["kwargs"], "removed": [], "reordered": False},
          "replacement-lacks-parameter": {"parameters": ["kwargs"]}}),
        ("async def forward(self, values): return values",
         {"kind-changed": {"old": "function", "new": "async function"}}),
        ("@keep\n    @a.b(1)\n    def forward(self, values): return values",
         {"decorators-changed": {"added": ["keep", "a.b(1)"], "removed": []}}),
        ("def forward(self, values): return values + 1", {"body-changed": {}}),
        ("def step(self, values): return values",
         {"target-missing": {"detail": "method forward of Gate is gone"}}),
    ],
)  # fmt: skip
def test_changes_of_a_method(tmp_path: Path, now: str, expected: dict[str, dict[str, Any]]) -> None:
    findings = compared(tmp_path, GATE, f"class Gate:\n    {now}\n")
    assert {f.code: {k: v for k, v in f.details.items() if k != "target"} for f in findings} == (
        expected
    )
    assert {f.details["target"] for f in findings} == {"Gate.forward"}
    assert all(f.severity == "error" for f in findings)


def test_messages_say_what_the_fields_do_not(tmp_path: Path) -> None:
    now = GATE.replace("values):", "values=1):")
    (finding,) = compared(tmp_path, GATE, now)
    assert finding.message == "default of values was none, is 1"
    (finding,) = compared(tmp_path, GATE, GATE.replace("self, values", "self, *, values"))
    assert finding.message == "values was positional, is keyword-only"


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("class N(A): x = 1", "class N(B, metaclass=M): x = 1",
         {"bases-changed": {"added": ["B", "metaclass=M"], "removed": ["A"]}}),
        ("class N:\n    a: int\n    b: int", "class N:\n    b: int\n    c: int = 2",
         {"fields-changed": {"added": ["c"], "removed": ["a"]}}),
        ("class N:\n    a: int\n    b: int", "class N:\n    b: int\n    a: int",
         {"fields-changed": {"added": [], "removed": []}}),
        ("class N:\n    a: int", "class N:\n    a: int = 3", {"body-changed": {}}),
        ("class P:\n    a: int\nclass N(P): ...",
         "class P:\n    a: int\n    z: int\nclass N(P): ...",
         {"fields-changed": {"added": ["z"], "removed": []}}),
        ("@d\nclass N: ...", "@e\nclass N: ...",
         {"decorators-changed": {"added": ["e"], "removed": ["d"]}}),
        ("class N:\n    def f(self): return 1", "class N:\n    def f(self): return 2",
         {"body-changed": {}}),
        ("class N: ...", "def N(): ...", {"kind-changed": {"old": "class", "new": "function"}}),
        ("class N: ...", "class M: ...", {"target-missing": {"detail": "class N is gone"}}),
        ("class N: ...", "if 1:\n    class N: ...",
         {"target-missing": {"detail": "class N is defined under a condition"}}),
        ("class M: ...", "class M: ...",
         {"target-missing": {"detail": "class N is in neither version"}}),
        ("class N:\n    def f(self): pass\n    x = 1",
         "class N:\n    x = 1\n    def f(self): ...", {}),
    ],
)  # fmt: skip
def test_changes_of_a_class(
    tmp_path: Path, old: str, new: str, expected: dict[str, dict[str, Any]]
) -> None:
    config = '@config.replace_class("N")\nclass Mine:\n    pass\n'
    findings = compared(tmp_path, old + "\n", new + "\n", config)
    assert {f.code: {k: v for k, v in f.details.items() if k != "target"} for f in findings} == (
        expected
    )


def test_members_of_a_class_that_changed_are_named(tmp_path: Path) -> None:
    old = "class N:\n    x = 1\n    def f(self): return 1\n    def g(self): return 1\n"
    config = '@config.replace_class("N")\nclass Mine:\n    pass\n'
    (finding,) = compared(tmp_path, old, old.replace("1\n    def g", "2\n    def g"), config)
    assert finding.message == "the code of the source changed: f"


def test_functions_overloads_and_accessors(tmp_path: Path) -> None:
    config = '@config.replace_function("rotate")\ndef mine(values, step=1, **rest): ...\n'
    stub = "@overload\ndef rotate(values: int): ...\n"
    old = stub + "def rotate(values, step=1):\n    return values\n"
    findings = compared(tmp_path, old, old.replace("step=1", "step=1, wrap=True"), config)
    assert [(f.code, f.severity) for f in findings] == [
        ("signature-changed", "error"),
        ("replacement-lacks-parameter", "info"),  # taken by **rest, and lost
    ]
    findings = compared(tmp_path, old, old.replace("values: int", "values: str"), config)
    assert [f.code for f in findings] == ["body-changed"]
    accessors = (
        "class Gate:\n    @property\n    def forward(self): return 1\n"
        "    @forward.setter\n    def forward(self, value): self.x = value\n"
    )
    findings = compared(tmp_path, accessors, accessors.replace("self.x", "self.y"))
    assert [f.code for f in findings] == ["body-changed"]
    findings = compared(tmp_path, "def rotate(): ...\n", "def turn(): ...\n", config)
    assert [f.details["detail"] for f in findings] == ["function rotate is gone"]


def test_a_method_that_the_source_gained(tmp_path: Path) -> None:
    """The patch was written to add it; now it replaces something."""
    findings = compared(tmp_path, "class Gate: ...\n", GATE.replace("values)", "values, mask)"))
    assert [(f.code, f.severity) for f in findings] == [
        ("body-changed", "error"),
        ("replacement-lacks-parameter", "error"),
    ]


def test_a_method_under_a_condition(tmp_path: Path) -> None:
    """It cannot be patched, and is not taken for one that the patch adds."""
    under = "class Gate:\n    if flag:\n        def forward(self, values): return 1\n"
    words = "method forward of Gate is defined under a condition"
    file = tmp_path / "one_patch_gen_config.py"
    file.write_text(HEAD + '@config.override_method("Gate.forward")\ndef f(self, values): ...\n')
    plan, _ = static.load(Found(file, "one_patch_gen_config"), [tmp_path]).plan("config")
    assert plan is not None
    for old in (under, GATE):
        (tmp_path / "old.py").write_text(old)
        (tmp_path / "new.py").write_text(under)
        versions = [contract.version_below(tmp_path / f"{v}.py", "kit.m") for v in ("old", "new")]
        findings = contract.compare(plan, *versions)
        assert [(f.code, f.message) for f in findings] == [("target-missing", words)]


def test_what_messages_say(tmp_path: Path) -> None:
    was = GATE.replace("values)", "values=None)")
    findings = compared(tmp_path, was, GATE.replace("def", "async def"))
    assert [f.message for f in findings] == [
        "was a function, is an async function",
        "default of values was None, is none",
    ]


def test_init_modification_rests_on_init(tmp_path: Path) -> None:
    config = '@config.modify_init("Gate")\ndef init(original_init, self): ...\n'
    old = "class Gate:\n    def __init__(self): ...\n"
    findings = compared(tmp_path, old, old.replace("self", "self, size"), config)
    assert [(f.code, f.name) for f in findings] == [("signature-changed", "Gate")]


def test_nested_classes(tmp_path: Path) -> None:
    def nest(text: str) -> str:
        return "class Outer:\n    " + text.replace("\n", "\n    ").rstrip() + "\n"

    findings = compared(
        tmp_path, nest(GATE), nest(GATE.replace("return", "yield")), target="Outer.Gate.forward"
    )
    assert [(f.code, f.name) for f in findings] == [("body-changed", "Outer.Gate.forward")]


def test_anchors_and_dropped_imports(tmp_path: Path) -> None:
    config = (
        '@config.add_helper_after("Output")\ndef helper(): ...\n'
        'config.drop_import_names("ramp", "slope_fn", "never", "b")\n'
    )
    old = "from ops import ramp as ramp_fn, slope as slope_fn\nimport a.b\nclass Output: ...\n"
    new = "def f():\n    from ops import slope as slope_fn\n"
    findings = compared(tmp_path, old, new, config)
    assert [(f.code, f.name, f.severity) for f in findings] == [
        ("anchor-missing", "Output", "error"),
        ("import-not-dropped", "b", "info"),
        ("import-not-dropped", "ramp", "info"),
    ]


@pytest.mark.parametrize(
    ("file", "root"),
    [
        ("kit/models/modeling.py", "."),
        ("src/kit/models/modeling.py", "."),
        ("lib/python3.11/site-packages/kit/models/modeling.py", "."),
        ("kit/models/modeling/__init__.py", "."),
        ("kit/models/modeling.py", "kit"),
        ("kit/models/modeling.py", "kit/models"),
        ("kit/models/modeling.py", "kit/models/modeling.py"),
        ("modeling.py", "."),
    ],
)
def test_where_a_version_is_looked_for(tmp_path: Path, file: str, root: str) -> None:
    path = tmp_path / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("from .shared import Base\nclass N(Base): ...\n")
    (path.parent / "shared.py").write_text("class Base:\n    a: int\n")
    version = contract.version_below(tmp_path / root, "kit.models.modeling")
    assert version.source.path == path and version.source.module == "kit.models.modeling"
    if file.startswith("kit/models/modeling.py") and not root.endswith(".py"):
        node = version.source.classes("N")[0]
        assert version.library.fields(version.source, node) == ["a"]


def test_versions_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"source module 'kit\.modeling' is not below it"):
        contract.version_below(tmp_path, "kit.modeling")
    (tmp_path / "modeling.py").write_text("x = 1\nclass (:\n")
    with pytest.raises(InputError, match="line 2: not Python"):
        contract.version_below(tmp_path, "kit.modeling")


def test_code_that_is_nested_too_deeply(tmp_path: Path) -> None:
    deep = GATE.replace("return values", "return values" + " + 1" * 500)
    with pytest.raises(InputError, match=r"Gate\.forward: nested too deeply"):
        compared(tmp_path, GATE, deep)


def test_shapes_ignore_layout_only() -> None:
    a = parse("def f(x):\n    'doc'\n    if x: return u'a' 'b', 0x10\n    pass\n", "a").body
    b = parse("def f(x):\n    # no\n    if (x):\n        return ('ab',\n         16)\n", "b").body
    c = parse("def f(x):\n    if x: return 'ab', 17\n", "c").body
    assert shape(a) == shape(b) != shape(c)
    assert shape(b) == (
        "[FunctionDef(name='f',args=arguments(args=[arg(arg='x')]),body=[If(test=Name(id='x'),"
        "body=[Return(value=Tuple(elts=[Constant(value='ab'),Constant(value=16)]))])])]"
    )  # as stored by every version of Python


def test_fingerprints_that_were_edited_count_as_none() -> None:
    plan = plan_of_project("fixkit.models.mini.mini_all_patch_gen_config")
    lines = fingerprint.lines(plan, contract.version_below(DATA / "contract/old", MINI))
    assert len(lines) == len(plan.patches) and all("\n" not in x for x in lines)
    lines = [f"# {x}" for x in lines]
    kept = fingerprint.stored("\n".join(lines))
    assert len(kept) == len(lines)
    for bad in ("{", "[]", '{"patch":"x","target":"y","kind":"class"}', '{"target":1}', "[" * 9999):
        text = "\n".join(["# " + fingerprint.MARK + bad, *lines[1:], "import os", lines[0]])
        assert list(fingerprint.stored(text)) == list(kept)[1:]
