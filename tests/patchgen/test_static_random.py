"""Random configs of many forms: where reading gives a plan, running gives the same one."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from ntool.lib.patchgen import static
from ntool.lib.patchgen.discover import Found
from ntool.lib.patchgen.run import Session

HEAD = """\
import copy, dataclasses, functools
from typing import TYPE_CHECKING
from patchgen import PatchConfig, create_patch_from_external
from bodies import one, two, Four as four
MAP = {"m": "n"}
NAMES = ["n0"]
SHARED = ["s"]
"""
BODIES = """\
def one(self): return 1
def two(self, config=None): return config
class Four:
    config: int = 3
"""
READ = [
    'config.exclude_from_output("A")',
    'config.exclude += ["C"]; config.exclude.insert(0, "first"); config.exclude.reverse()',
    'config.exclude.extend(x for x in ["D", "E"] if x != "D")',
    'config.override_method("A.f", replacement=one); config.replace_class("K", four, {**MAP})',
    'config.override_method("A.g", two, MAP); MAP["late"] = "change"',
    'config.helpers.extend([h for h in other.helpers if h.__name__ != "one"])',
    "config.patches.extend(other.patches); config.helpers += other.helpers",
    'config.patches = [p for p in config.patches if p.target not in ("A.f", "A.g")]',
    'NAMES.append("n1"); config.add_import("os", names=NAMES); NAMES += ["n2"]',
    'MAP = dict(MAP); MAP.update(q="r")',
    'alias = config; alias.add_helper(one); names = alias.exclude; names.append("alias")',
    'register = config.override_method\n@register("R.one")\ndef registered(self): pass',
    "@config.add_helper()\n@functools.lru_cache\ndef helper(): pass",
    '@config.override_method("S.t")\n@config.override_method("S.u", description="d")\n'
    "def stacked(self, config): return config",
    'if TYPE_CHECKING: config.exclude.append("checking")',
    'if not TYPE_CHECKING: config.exclude.append("not checking")',
    'config.drop_import_names("p", "q"); config.drop_imported_names.discard("p")',
    'config.drop_imported_names |= {"w"}; config.drop_imported_names -= {"q"}',
    'config.target_file = "t.py"; config.description = "d"',
    "config = copy.deepcopy(config)",
    'config = copy.copy(config); config = dataclasses.replace(config, target_file="r.py")',
    "other, config = config, other",
    'keep = [config]; keep[0].exclude.append("kept")',
    'config.patches.append(create_patch_from_external("E", "m", "n"))\n'
    'config.patches[-1].target = "Z"',
    'targets = ("T.a", "T.b"); config.override_method(*targets[:1], replacement=one)',
    "one, two = two, one",
    'config.exclude = SHARED; SHARED.append("shared")',
    'config = PatchConfig("src.m", patches=list(config.patches), exclude=other.exclude)',
]
"""Forms that are read."""
NOT_READ = [
    'for n in "ab": config.exclude.append(n)',
    "for n in 'ab': NAMES.append(n)",
    'def later(): config.exclude.append("later")\nlater()',
    'add = lambda: config.exclude.append("lambda")\nadd()',
    'if len(NAMES) > 1: config.exclude.append("long")',
    "class Holder: kept = config\nHolder.kept.exclude.append('held')",
    'getattr(config, "exclude").append("by name")',
    "config.exclude.sort()",
    "pair = (config, 1)\nfor c in pair[:1]: c.exclude.append('of a pair')",
    "held = config.exclude\nfor n in 'ab': held.append(n)",
    "def make():\n    def inner(): pass\n    return inner\nmake()",
]
"""Forms that are refused where they matter; between the others they must not be overlooked."""


def config_of(rng: random.Random, start: str, forms: list[str], count: int) -> str:
    return "\n".join([HEAD, start, *(rng.choice(forms) for _ in range(count))]) + "\n"


@pytest.mark.parametrize(("forms", "at_least"), [(READ, 30), (READ + NOT_READ, 5)])
def test_reading_and_running_agree(tmp_path: Path, forms: list[str], at_least: int) -> None:
    (tmp_path / "bodies.py").write_text(BODIES)
    read = 0
    for seed in range(30):
        rng = random.Random(seed)
        start = 'config = PatchConfig("src.m")\nother = PatchConfig("src.o")'
        sibling = config_of(rng, start, forms, rng.randint(0, 4))
        (tmp_path / "sibling_patch_gen_config.py").write_text(sibling)
        start = "from sibling_patch_gen_config import config as other\n"
        start += rng.choice(['config = PatchConfig("src.m")', "config = copy.deepcopy(other)"])
        text = config_of(rng, start, forms, rng.randint(1, 8))
        file = tmp_path / "main_patch_gen_config.py"
        file.write_text(text)
        found = Found(file, "main_patch_gen_config")
        plan, problems = static.load(found, [tmp_path]).plan("config")
        assert (plan is None) is bool(problems)
        if plan is not None:
            read += 1
            with Session() as session:
                assert plan == session.load(found, [tmp_path]).plan("config"), text
    assert read >= at_least
