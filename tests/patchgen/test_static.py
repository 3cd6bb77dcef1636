"""Configs read as syntax: the same plans as by running them, and refusals of what is not read."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ntool.lib.checkpoint.tensor import Problem
from ntool.lib.errors import InputError
from ntool.lib.patchgen import static
from ntool.lib.patchgen.discover import Found
from ntool.lib.patchgen.model import Plan
from ntool.lib.patchgen.run import NoConfig, Session

DATA = Path(__file__).parents[1] / "data"
PROJECT, FORMS = DATA / "patchgen" / "project", DATA / "patchgen-forms"


def found_in(file: Path, root: Path) -> Found:
    return Found(file, ".".join(file.relative_to(root).with_suffix("").parts))


def read(file: Path, root: Path, variable: str = "config") -> tuple[Plan | None, list[Problem]]:
    return static.load(found_in(file, root), [root]).plan(variable)


def run(file: Path, root: Path, variable: str) -> Plan:
    with Session() as session:
        return session.load(found_in(file, root), [root]).plan(variable)


def read_text(tmp_path: Path, body: str, **others: str) -> tuple[Plan | None, list[Problem]]:
    """The plan of a config with a text; `others` are further modules beside it."""
    for name, text in others.items():
        (tmp_path / f"{name}.py").write_text(text)
    file = tmp_path / "some_patch_gen_config.py"
    file.write_text(HEAD + body)
    return read(file, tmp_path)


HEAD = """\
from patchgen import PatchConfig
config = PatchConfig(source_module="kit.modeling")
def f(self):
    return 1
"""


def facts(plan: Plan) -> dict[str, object]:
    """What a plan says, with names in place of positions."""
    patches = [(p.kind.value, p.target, p.replacement.name, p.description) for p in plan.patches]
    return {"patches": patches, "helpers": [h.name for h in plan.helpers]}


@pytest.mark.parametrize(
    ("file", "variable"),
    [
        *((f, "config") for f in sorted(PROJECT.rglob("*_patch_gen_config.py"))
          if "other_name" not in f.name),
        (PROJECT / "fixkit/models/hazards/other_name_patch_gen_config.py", "settings"),
        (FORMS / "formkit/first_patch_gen_config.py", "settings"),
        *((FORMS / f"formkit/{name}_patch_gen_config.py", "config")
          for name in ("extending", "in_place", "copied", "deep/relative")),
        (FORMS / "formkit/copied_patch_gen_config.py", "fresh"),
        (FORMS / "formkit/copied_patch_gen_config.py", "other"),
    ],
    ids=lambda x: x.stem.removesuffix("_patch_gen_config") if isinstance(x, Path) else x,
)  # fmt: skip
def test_reading_gives_what_running_gives(file: Path, variable: str) -> None:
    root = PROJECT if PROJECT in file.parents else FORMS
    plan, problems = read(file, root, variable)
    assert problems == []
    assert plan == run(file, root, variable)
    assert plan is not None and (plan.patches or plan.excluded)


def test_plan_of_a_sibling_changed_in_place() -> None:
    """By hand, so that reading and running cannot be wrong together."""
    plan, _ = read(FORMS / "formkit/in_place_patch_gen_config.py", FORMS)
    assert plan is not None
    assert facts(plan) == {
        "patches": [
            ("function_replacement", "rotate", "rotate", "told anew"),
            ("method_override", "MiniMoeModel.forward", "forward", "Override MiniMoeModel.forward"),
            ("function_replacement", "rotate", "rotate", "again"),
            ("method_override", "MiniMoeModel.step", "later", "by position"),
            ("function_replacement", "apply", "apply", "another function"),
        ],
        "helpers": [],
    }
    assert plan.patches[1].name_map == (("Mini", "MiniMoe"),)
    assert plan.patches[1].replacement.module == "formkit.first_patch_gen_config"
    assert plan.target_file == "patched_in_place.py" and plan.dropped == ("one", "ramp", "slope")
    assert plan.excluded == ("Other", "Tail")
    assert [i.module for i in plan.imports] == ["statistics", "fractions", "kernels"]
    assert [(name, code.name) for name, code in plan.after] == [
        ("rotate", "later"),
        ("Output", "arrives"),
    ]


def test_encodings_line_ends_and_marks(tmp_path: Path) -> None:
    text = (
        "# -*- coding: latin-1 -*-\nfrom patchgen import PatchConfig\n"
        'config = PatchConfig("kit.m", description="na\xefve")\n\x0c\n'
        '@config.override_method("Gate.forward", description="\xfc")\ndef gate(self): ...\n'
    )
    file = tmp_path / "latin_patch_gen_config.py"
    file.write_bytes(text.replace("\n", "\r\n").encode("latin-1"))
    plan, problems = read(file, tmp_path)
    assert problems == [] and plan is not None and plan.description == "na\xefve"
    assert [(p.description, p.replacement.line) for p in plan.patches] == [("\xfc", 6)]  # type: ignore[union-attr]
    marked = tmp_path / "marked_patch_gen_config.py"
    marked.write_bytes(b'\xef\xbb\xbfimport patchgen as p\nconfig = p.PatchConfig("\xc3\xa4")\n')
    plan, problems = read(marked, tmp_path)
    assert problems == [] and plan is not None and plan.source_module == "ä"


@pytest.mark.parametrize(
    ("line", "body"),
    [
        (5, 'for n in ("A", "B"):\n    config.override_method(n + ".f", replacement=f)\n'),
        (6, 'import os\nconfig.override_method(os.environ["T"], replacement=f)\n'),
        (6, 'P = "Mini"\nconfig.override_method(f"{P}Gate.f", replacement=f)\n'),
        (5, 'config.override_method("Mini" + "Gate.f", replacement=f)\n'),
        (6, 'import sys\nif sys.platform == "linux":\n    config.exclude_from_output("A")\n'),
        (7, 'def more():\n    config.exclude_from_output("A")\nmore()\n'),
        (7, "def more(c):\n    c.exclude.clear()\nmore(config)\n"),
        (6, 'add = lambda: config.exclude_from_output("A")\nadd()\n'),
        (5, 'setattr(config, "target_file", "x.py")\n'),
        (5, 'with open("x") as t:\n    config.exclude.append(t.read())\n'),
        (5, 'while not config.exclude:\n    config.exclude.append("A")\n'),
        (5, "exec(\"config.exclude.append('A')\")\n"),
        (5, 'globals()["config"].exclude.append("A")\n'),
        (5, 'try:\n    config.exclude.append("A")\nexcept ValueError:\n    pass\n'),
        (5, 'config.override_method("A.f", replacement=missing)\n'),
        (5, 'config.override_method("A.f", replacement=lambda self: 1)\n'),
        (5, "config.patches.append(make())\n"),
        (5, 'config.exclude = "A B".split()\n'),
        (5, 'config.helpers.sort(key=str)\n'),
        (5, "config.nothing = 1\n"),
        (5, 'config.add_helper_at("A")\n'),
        (5, "config.exclude.extend(x for a in [1] for x in a)\n"),
        (6, "from somewhere import wrap\n@wrap(config)\ndef g(self): ...\n"),
        (5, "def g(self, x=config.exclude.pop()): ...\n"),
        (5, "class G:\n    config.exclude_from_output('A')\n"),
        (6, 'NAMES = ["A"]; NAMES.sort()\nconfig.exclude.extend(NAMES)\n'),
        (8, 'NAMES = ["A"]\ndef fill(): NAMES.append("B")\nfill()\nconfig.exclude.extend(NAMES)\n'),
        (7, 'M = {}\nfor n in "AB": M[n] = n\nconfig.override_method("A.f", f, M)\n'),
        (6, 'if f: g = f\nconfig.override_method("A.f", g)\n'),
        (6, 'try: from os import g\nexcept ImportError: g = f\nconfig.override_method("A.f", g)\n'),
        (5, "import sibling\nsibling.change()\n"),
    ],
)  # fmt: skip
def test_what_only_running_tells_is_refused(tmp_path: Path, line: int, body: str) -> None:
    sibling = "from some_patch_gen_config import config\ndef change(): config.exclude.clear()\n"
    plan, problems = read_text(tmp_path, body, sibling=sibling)
    assert plan is None
    if body.startswith("try: from os"):
        line += 1
    if "sibling" in body:
        line += 1
    assert [(p.code, p.severity, p.malformed) for p in problems] == [("not-static", "error", True)]
    assert problems[0].message.startswith(f"line {line}: "), problems[0].message


@pytest.mark.parametrize(
    "body",
    [
        "import torch\n",  # that it has, or lacks
        "import absent\nx = absent.torch.zeros(3) if absent.yes else [absent.y(k) for k in f]\n",
        "for n in range(3):\n    print(n)\n",
        "def more():\n    config.exclude_from_output('A')\n",  # never called
        "class G:\n    config: int = 3\n    config = config\n    def g(self): return config\n",
        "def g(config):\n    config.exclude.clear()\ng(print)\n",
        "if __name__ == '__main__':\n    config.exclude.clear()\n",
        "import typing\nif typing.TYPE_CHECKING:\n    config.exclude.clear()\n",
        "x = [config for config in (1, 2)] if not f else 3\n",
        "with open('x') as t:\n    y = t\n",
        "from dataclasses import dataclass\n@dataclass\nclass G:\n    a: int\n",
    ],
)
def test_the_rest_of_a_file_does_not_matter(tmp_path: Path, body: str) -> None:
    after = 'config.override_method("A.f", replacement=f)\n'
    plan, problems = read_text(tmp_path, body + after)
    if body.startswith("x = [config"):  # too close to the config to tell: refused, never guessed
        assert plan is None and [p.code for p in problems] == ["not-static"]
        return
    assert problems == [] and plan is not None
    assert facts(plan)["patches"] == [("method_override", "A.f", "f", "Override A.f")]
    assert plan.excluded == ()


@pytest.mark.parametrize(
    "text",
    [
        "from patchgen import patch_spec\nconfig = patch_spec.PatchConfig('a')\n",
        "import patchgen.patch_spec\nconfig = patchgen.patch_spec.PatchConfig('a')\n",
        "import patchgen.patch_spec as p\nconfig = p.PatchConfig(source_module='a')\n",
        "from patchgen import *\nconfig: PatchConfig = PatchConfig('a')\n",
        "from patchgen import PatchConfig as C\nALL = dict(source_module='a')\nconfig = C(**ALL)\n",
        "try:\n    from patchgen import PatchConfig\nexcept ImportError:\n"
        "    from patchgen.patch_spec import PatchConfig\nconfig = PatchConfig('a')\n",
        "from acme.specs import PatchConfig\nconfig = PatchConfig('a')\n",
        "from patchgen.patch_spec import *\nconfig = PatchConfig('a')\n"
        "config.additional_imports.append(ImportSpec('os', names=['sep']))\n"
        "def f(): ...\nconfig.positioned_helpers += [PositionedHelper('T', f)]\n"
        "config.patches.append(Patch(PatchType.METHOD_OVERRIDE, target='A.f', replacement=f))\n",
    ],
)
def test_under_whatever_name_the_tool_is_imported(tmp_path: Path, text: str) -> None:
    file = tmp_path / "one_patch_gen_config.py"
    file.write_text(text + "config.exclude_from_output('X')\n")
    found, shims = Found(file, file.stem), ["acme.specs"]
    plan, problems = static.load(found, [tmp_path], shims).plan("config")
    assert problems == [] and plan is not None and plan.excluded == ("X",)
    with Session(shims) as session:
        assert plan == session.load(found, [tmp_path]).plan("config")


def test_every_place_is_told(tmp_path: Path) -> None:
    _, problems = read_text(tmp_path, "config.exclude.append(a)\nx = 1\nconfig.exclude = b\n")
    assert [p.message.partition(":")[0] for p in problems] == ["line 5", "line 7"]


def test_a_sibling_matters_only_where_its_config_does(tmp_path: Path) -> None:
    loop = 'for n in "AB":\n    config.exclude_from_output(n)\n'
    sibling = HEAD.replace("def f", "def g") + loop
    use = 'from sibling import g\nconfig.override_method("A.f", replacement=g)\n'
    plan, problems = read_text(tmp_path, use, sibling=sibling)
    assert problems == [] and plan is not None
    assert facts(plan)["patches"] == [("method_override", "A.f", "g", "Override A.f")]
    use = "from sibling import config as other\nconfig.exclude.extend(other.exclude)\n"
    plan, problems = read_text(tmp_path, use, sibling=sibling)
    assert plan is None
    assert [(Path(p.file or "").name, p.message[:7]) for p in problems] == [
        ("sibling.py", "line 5:")
    ]


def test_an_import_that_changes_a_sibling_is_followed(tmp_path: Path) -> None:
    changes = "from first_patch_gen import config\nconfig.exclude_from_output('Late')\n"
    plan, problems = read_text(
        tmp_path,
        "import changes\nfrom first_patch_gen import config\n",
        first_patch_gen=HEAD,
        changes=changes,
    )
    assert problems == [] and plan is not None and plan.excluded == ("Late",)


def test_files_that_are_not_python(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"line 5: not Python"):
        read_text(tmp_path, "def broken(:\n")
    plan, problems = read_text(
        tmp_path, "from sibling import g\n", sibling="import patchgen\ndef broken(:\n"
    )
    assert plan is None
    assert [p.code for p in problems] == ["not-readable"] and "line 2" in problems[0].message


def test_statements_that_are_nested_too_deeply(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="line 5: nested too deeply"):
        read_text(tmp_path, "x = f" + " + 1" * 500 + "\n")


def test_no_config_of_that_name(tmp_path: Path) -> None:
    with pytest.raises(NoConfig, match="variable 'config'"):
        read_text(tmp_path, "del config\n")
    with pytest.raises(InputError, match="expected a PatchConfig"):
        read_text(tmp_path, "config = 3\n")
    with pytest.raises(InputError, match="a replacement or helper is 3"):
        read_text(tmp_path, "config.helpers.append(3)\n")
    with pytest.raises(InputError, match="config: patches"):
        read_text(tmp_path, "config.patches = 'abc'\n")
    plan, problems = read_text(tmp_path, "import os\nconfig = os.environ\n")
    assert plan is None and [p.code for p in problems] == ["not-static"]


def test_nothing_is_run_or_imported(tmp_path: Path) -> None:
    plan, problems = read_text(tmp_path, "import sibling\nopen('touched', 'w')\n",
                               sibling="import patchgen\nraise SystemExit(7)\n")  # fmt: skip
    assert problems == [] and plan is not None
    assert not Path("touched").exists()
    assert "sibling" not in sys.modules and "patchgen" not in sys.modules
