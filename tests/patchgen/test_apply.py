"""How plans are applied: what moves, what stays, byte for byte."""

from __future__ import annotations

import ast
import textwrap
from pathlib import Path

import pytest

from .projects import codes, findings, generated, make_project, patchgen

SOURCE = '''\
#!/usr/bin/env python
# -*- coding: latin-1 -*-
# licence

"""Doc é."""
import os, sys; import re
from .more import (
    alpha,  # the alpha
    beta,
    # about gamma
    gamma as g,
)
if os.name == "none":
    from .nothing import X
try:
    from . import other
except ImportError:
    other = None
logger = os.getcwd() + sys.path[0]

def deco(*a, **k):
    return lambda f: f


@deco(
    "x",  # comment ( in brackets
    y=[1,
2],
)
async def work(a, /, b, *, c=1):
    """Doc."""
    from .inner import thing
    return alpha, thing
    # trailing comment of work

# between

class Outer(object):
    """Docstring of outer."""

    class Inner:
        def f(self): return beta

    @property
    def p(self): return 1
    @staticmethod
    def s(x): return x   # trailing
    # end of Outer

class Dots: ...  # say something
class Passing: pass; ...
class Doc:
    """Only doc."""

match os.name:
    case "posix":
        import posixpath as px
    case _:
        px = None
x: int = 3; y = 4
del y
'''
CONFIG = '''
config.drop_import_names("gamma", "re")

def deco(*a, **k): return lambda f: f

# above work
@config.replace_function("work", description="multi\\nline")
@deco("mine")
async def my_work(a, /, b, *, c=1):
    """My doc.

  odd indentation
    """
    if a: return my_work(b, a)
    x = lambda my_work: my_work
    return alpha  # done
    # trailing 1

    # trailing 2

# over f
@config.override_method("Outer.Inner.f")
def f(self):
    return """
text at column 0
""" + str(beta)

@config.override_method("Outer.s")
def s(x):
    # c1
    return x + 1
    # c2

@config.override_method("Outer.new")
@classmethod
async def new_one(
    cls,
    a,
):
  # two spaces
  if a:
     return cls
  return 1

@config.override_method("Dots.a")
def a(self): return 1
@config.override_method("Dots.b")
def b(self):
    return 2
@config.override_method("Passing.a")
def pa(self): return 1
@config.override_method("Doc.a")
def da(self): return 1
'''


def body(text: str) -> str:
    """A generated module without its header."""
    return text.split("=\n\n", 1)[1]


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("odd") / "p"
    return body(generated(make_project(folder, SOURCE.encode("latin-1"), CONFIG)))


def test_the_head_stays_and_the_encoding_is_ours(odd: str) -> None:
    assert odd.startswith(SOURCE[: SOURCE.index("import os")])
    ast.parse(odd.encode())


def test_dropped_imports_leave_their_neighbours(odd: str) -> None:
    expected = """\
import os, sys
from lib.more import (
    alpha,  # the alpha
    beta,
)
if os.name == "none":
    from lib.nothing import X
try:
    from lib import other
except ImportError:
    other = None
"""
    assert expected in odd


def test_a_replaced_function(odd: str) -> None:
    expected = '''\
# above work
@deco("mine")
async def work(a, /, b, *, c=1):
    """My doc.

  odd indentation
    """
    if a: return work(b, a)
    x = lambda my_work: my_work
    return alpha  # done
    # trailing 1

    # trailing 2


# ====='''
    assert expected in odd
    assert "trailing comment of work" not in odd
    assert "# Reason: multi line\n" in odd


def test_methods_in_their_places(odd: str) -> None:
    expected = '''\
# between
class Outer(object):
    """Docstring of outer."""

    class Inner:
        # over f
        def f(self):
            return """
text at column 0
""" + str(beta)

    @property
    def p(self): return 1
    @staticmethod
    def s(x):
        # c1
        return x + 1
        # c2

    @classmethod
    async def new(
        cls,
        a,
    ):
        # two spaces
        if a:
           return cls
        return 1
    # end of Outer
'''
    assert expected in odd


def test_bodies_that_say_nothing_are_opened(odd: str) -> None:
    assert (
        "class Dots:\n    # say something\n    def a(self): return 1\n\n    def b(self):\n" in odd
    )
    assert "class Passing:\n    def a(self): return 1\n" in odd
    assert 'class Doc:\n    """Only doc."""\n\n    def a(self): return 1\n' in odd


def test_every_other_statement_stays(odd: str) -> None:
    assert odd.endswith(SOURCE[SOURCE.index("match os.name") :])


def test_line_ends_bom_and_form_feeds(tmp_path: Path) -> None:
    source = (
        b"\xef\xbb\xbf# Licence\r\n# two\r\n\r\n# on A\r\nclass A:\r\n    x = '''a\r\nb'''\r\n"
        b"\x0c\r\n# on f\r\ndef f(): return 1\r\nF = ['A\\f', '\xe2\x80\xa8']\r\n"
        b"__all__ = ('A', 'f')\r\n"
    )
    config = """
config.exclude_from_output("A")
config.add_import("__future__", names=["annotations"])
config.add_import("os", alias="system", is_from_import=False)
"""
    text = body(generated(make_project(tmp_path / "p", source, config)))
    assert text == (
        "# Licence\n# two\n\n\nfrom __future__ import annotations\n\n\n"
        "# Additional imports for patches\nimport os as system\n\n"
        "\x0c\n# on f\ndef f(): return 1\nF = ['A\\f', '\u2028']\n__all__ = ('f',)\n"
    )


def test_an_untouched_source_is_kept_to_the_byte(tmp_path: Path) -> None:
    source = "# a\n\nimport os\n\n\n\n\n\nx = os\t# two\n\n\n# end\n"
    assert body(generated(make_project(tmp_path / "p", source, ""))) == source


def test_an_empty_source(tmp_path: Path) -> None:
    config = (
        'config.add_import("os", is_from_import=False)\n@config.add_helper\ndef h(): return 1\n'
    )
    text = generated(make_project(tmp_path / "p", "", config))
    assert [type(n) for n in ast.parse(text).body] == [ast.Import, ast.FunctionDef]


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


def test_escapes_that_python_warns_of_are_the_sources_own(tmp_path: Path) -> None:
    """The test run turns warnings into errors."""
    source = 'x = "\\d"\ndef f(a: "\\d" = 1): return a\n'
    config = '@config.replace_function("f")\ndef f(a=1): return "\\d", a\n'
    text = generated(make_project(tmp_path / "p", source, config))
    assert 'x = "\\d"\n' in text and 'return "\\d", a' in text


def test_a_source_of_comments_alone(tmp_path: Path) -> None:
    source = "# only\n\n# comments\n"
    root = make_project(tmp_path / "p", source, "")
    assert body(generated(root)) == source


def test_an_exclusion_leaves_every_list_of_all(tmp_path: Path) -> None:
    source = """\
__all__ = [
    "A",  # a
    # about B
    "B",
] + ["C"]
__all__ += ("B", "D")
__all__.extend(["B", "C"])
class A: pass
class B: pass
class C: pass
class D: pass
"""
    text = generated(make_project(tmp_path / "p", source, 'config.exclude_from_output("B")\n'))
    assert body(text) == source.replace('    # about B\n    "B",\n', "").replace(
        '("B", "D")', '("D",)'
    ).replace('["B", "C"]', '["C"]').replace("class B: pass\n", "")
