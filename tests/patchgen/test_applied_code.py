"""What a config brings into a module: its imports, names and decorators; and configs and sources
that are refused.
"""

from __future__ import annotations

import ast
import textwrap
from pathlib import Path

import pytest

from .projects import body, codes, findings, generated, make_project, patchgen

IMPORTS = """\
import math
import os.path, json as js
from typing import Optional, List
import unused
from __future__x import also_unused
try:
    import zlib
except ImportError:
    zlib = None
def f():
    import colorsys
    return math, os.path, js, zlib
def g(x: "Optional[int]") -> List: return x
"""


def test_imports_that_are_used_no_more_go(tmp_path: Path) -> None:
    config = """
@config.replace_function("f")
def f(): return 1
@config.replace_function("g")
def g(x: "List[int]"): return x
"""
    text = body(generated(make_project(tmp_path / "p", IMPORTS, config)))
    assert text.startswith("from typing import List\nimport unused\nfrom __future__x import also_")
    assert "import zlib" in text, "what is guarded stays"


def test_names_in_all_count_as_used(tmp_path: Path) -> None:
    source = "import math\n__all__ = ['math', 'f']\ndef f(): return math\n"
    config = '@config.replace_function("f")\ndef f(): return 1\n'
    assert "import math\n" in generated(make_project(tmp_path / "p", source, config))


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("from .a import b\n", "from pkg.sub.a import b\n"),
        ("from . import b\n", "from pkg.sub import b\n"),
        ("from .. import b\n", "from pkg import b\n"),
        ("from ..a.c import (\n    b,  # x\n    d as e,\n)\n",
         "from pkg.a.c import (\n    b,  # x\n    d as e,\n)\n"),
        ("from .import b\n", "from pkg.sub import b\n"),
        ("from  . a . c  import b\n", "from pkg.sub.a.c import b\n"),
        ("from ...top import b\n", None),
        ("from \\\n    .import_x \\\n    import b\n", "from pkg.sub.import_x import b\n"),
        ("def f():\n    é = 1; from .a import b; return b, é\n",
         "def f():\n    é = 1; from pkg.sub.a import b; return b, é\n"),
        ("class A:\n    from .a import b\n", "class A:\n    from pkg.sub.a import b\n"),
        ('x = """\nfrom .a import b\n"""\n', 'x = """\nfrom .a import b\n"""\n'),
        ("from a import b\n", "from a import b\n"),
    ],
)  # fmt: skip
def test_relative_imports(source: str, expected: str | None) -> None:
    from ntool.lib.errors import InputError
    from ntool.lib.patchgen.snippet import absolute_imports

    if expected is None:
        with pytest.raises(InputError, match=r"line 1: relative import: found \.\.\.top"):
            absolute_imports(source, "pkg.sub", "file")
        return
    assert absolute_imports(source, "pkg.sub", "file") == expected


def test_additions_go_behind_the_imports_at_the_head(tmp_path: Path) -> None:
    source = """\
import a
x = 1
if x:
    import b
import c
def f(): return a, c
import late
def g(): return late
"""
    config = """
config.add_import("d", is_from_import=False)
config.add_post_import_block(\"\"\"
    if d:
        e = 1
\"\"\")
@config.add_helper
def h(): return e
@config.add_helper_after("f")
class K: pass
"""
    tree = ast.parse(generated(make_project(tmp_path / "p", source, config)))
    found = [ast.unparse(n).split("\n")[0] for n in tree.body]
    assert found == [
        *("import a", "x = 1", "if x:", "import c", "import d", "if d:", "def h():"),
        *("def f():", "class K:", "import late", "def g():"),
    ]


def test_the_body_of_a_replacement_may_import_relatively(tmp_path: Path) -> None:
    config = """
@config.replace_function("f")
def f():
    from .other import thing
    return thing
"""
    text = generated(make_project(tmp_path / "p", "def f(): return 0\n", config))
    assert "    from kit.other import thing\n" in text


def test_renaming_reaches_uses_and_nothing_else(tmp_path: Path) -> None:
    config = """
@config.replace_class("A")
class New:
    # class New in a comment
    text = "New"
    me: "list[New]"
    def f(self, New=None): return New
    def g(self) -> "New":
        class Newer: pass
        return New, super(New, self), self.New, dict(New=1), Newer
"""
    text = generated(make_project(tmp_path / "p", "class A: pass\n", config))
    assert textwrap.dedent("""\
        class A:
            # class New in a comment
            text = "New"
            me: "list[A]"
            def f(self, New=None): return New
            def g(self) -> "A":
                class Newer: pass
                return A, super(A, self), self.New, dict(New=1), Newer
        """) in text  # fmt: skip


@pytest.mark.parametrize(
    "decorator",
    [
        '@config.override_method("A.f")',
        '@config.override_method("A.f", description="open ( [ { and \' never closed")',
        '@config.override_method(\n    "A.f",  # ) remark\n    description="x",\n)',
        '@(\n    config.override_method("A.f")\n)',
        '@other.override_method("A.f")',
        '@alias("A.f")',
        '@override_method("A.f")',
        '@deco\n@config.override_method("A.f")\n@deco',
    ],
)
def test_decorators_of_the_config_go(decorator: str, tmp_path: Path) -> None:
    config = f"""
other = config
alias = config.override_method
override_method = config.override_method
def deco(f): return f
{decorator}
def f(self): return 1
"""
    source = "def deco(f): return f\nclass A:\n    def f(self): return 0\n"
    text = generated(make_project(tmp_path / "p", source, config))
    extra = "    @deco\n    @deco\n" if "@deco" in decorator else ""
    assert f"class A:\n{extra}    def f(self): return 1\n" in text


def test_helpers_may_be_registered_without_arguments(tmp_path: Path) -> None:
    config = """
import functools
@config.add_helper()
@functools.lru_cache
def cached(): return 1
def plain(): return 2
config.add_helper(plain)
config.add_helper(plain)
config.add_import("functools", is_from_import=False)
"""
    text = generated(make_project(tmp_path / "p", "x = 1\n", config))
    assert "@functools.lru_cache\ndef cached(): return 1\n" in text
    assert text.count("def plain") == 1 and "@config" not in text


def test_an_external_function(tmp_path: Path) -> None:
    config = """
config.patches.append(create_patch_from_external(
    "f", "os.path", "join", patch_type=PatchType.FUNCTION_REPLACEMENT))
config.patches.append(create_patch_from_external("A", "types", "A"))
"""
    text = generated(make_project(tmp_path / "p", "def f(): pass\nclass A: pass\n", config))
    assert "# [PATCHED FUNCTION] f\n" in text
    assert "# Import from: os.path.join\nfrom os.path import join as f\n" in text
    assert "\nfrom types import A\n" in text


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ('config.add_post_import_block("x = = 1")', "post-import block 1: line 1: not Python"),
        ('config.add_import("a-b")', "add_import: found from a-b import *"),
        ('config.add_import("a", names=["b; import c"])', "add_import"),
        ('config.target_file = "../x.py"', "target_file: found ../x.py"),
        ('config.target_file = "x.diff"', "target_file: found x.diff"),
        ('config.source_module = "no.such"', "source module 'no.such' is not found"),
        ("config.override_method('A.f', replacement=lambda self: 1)", "inside another function"),
        ("config.replace_class('A', replacement=int)", "no class or function of a Python file"),
        ("config.exclude.append(1)", "excluded name: found 1, expected text"),
        ("config.add_import('os', names='path')", "names of os"),
        ("config.override_method('A.f', replacement=type)", "no class or function"),
        ("class K: pass\nconfig.override_method('A.f', replacement=K)", "cannot become a method"),
        (
            "config.add_post_import_block('from __future__ import annotations')",
            "out.py: line ",
        ),
        (
            "def k(self): pass\nconfig.replace_function('f', replacement=k, name_map={'k': 'k-'})",
            "not Python",
        ),
        (
            "def k(self): pass\nconfig.replace_function('f', replacement=k, name_map={'': 'x'})",
            "name_map of f",
        ),
    ],
)
def test_configs_that_cannot_be_used(config: str, said: str, tmp_path: Path) -> None:
    source = "import os\nclass A:\n    def f(self): pass\ndef f(): pass\n"
    root = make_project(tmp_path / "p", source, config)
    done = patchgen("generate", cwd=root)
    assert done.code == 3 and said in done.of("problem")[0]["message"]
    assert not (root / "kit" / "generated").exists()


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (b"x = 1\n  y = 2\n", "model.py: line 2: not Python"),
        (b"# -*- coding: nonsense -*-\n", "unknown encoding"),
        (b"x = '\xff'\n", "not Python text"),
        (b"x = 1\n\0\n", "model.py: line 2: not Python (a NUL byte)"),
        (b"x = " + b"(" * 300 + b")" * 300, "not Python"),
    ],
)
def test_sources_that_cannot_be_read(source: bytes, said: str, tmp_path: Path) -> None:
    done = patchgen("generate", cwd=make_project(tmp_path / "p", source, ""))
    assert done.code == 3 and said in done.of("problem")[0]["message"]


def test_a_patch_of_what_a_condition_defines_is_refused(tmp_path: Path) -> None:
    source = "if 1:\n    def f(): return 1\n    class G:\n        def m(self): return 2\n"
    config = """
@config.replace_function("f")
def f(): return 4
@config.override_method("G.m")
def m(self): return 4
"""
    root = make_project(tmp_path / "p", source, config)
    assert codes(root) == [("not-applied", "f"), ("not-applied", "G.m")]
    assert "under a condition (line 2)" in findings(root)[0]["message"]
