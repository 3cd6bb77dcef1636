"""docs/patchgen.md against the code: findings, settings, methods of configs."""

from __future__ import annotations

import dataclasses
import inspect
import re
from pathlib import Path

from ntool.lib.patchgen.discover import Settings
from ntool.lib.patchgen.findings import CODES
from ntool.lib.patchgen.model import PatchConfig

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "patchgen.md").read_text(encoding="utf-8")


def rows(title: str) -> list[list[str]]:
    """The words in backquotes in the first column of a section's table, row by row."""
    section = PAGE.split(f"\n## {title}\n", 1)[1].split("\n## ", 1)[0]
    return [
        re.findall(r"`([^`]+)`", row) for row in re.findall(r"^\| ([^|]*`[^|]*) \|", section, re.M)
    ]


def test_every_finding_has_its_row_and_level() -> None:
    of_loading = set()
    for module in (ROOT / "lib" / "patchgen").glob("*.py"):
        text = module.read_text(encoding="utf-8")
        of_loading |= set(re.findall(r'_?[Pp]roblem\("([a-z-]+)"', text))
    listed = {code for row in rows("Findings") for code in row}
    assert listed == {*CODES} | of_loading
    assert of_loading >= {"config-missing", "config-not-loaded", "not-built", "not-static"}
    for code, severity in CODES.items():
        level = {"error": "error", "info": "note"}[severity]
        assert re.search(rf"^\| [^|]*`{code}`[^|]* \| {level} \|", PAGE, re.M), code


def test_every_setting_has_its_row() -> None:
    spelled = {"legacy_prefix": "legacy_patches_prefix"}
    names = {spelled.get(f.name, f.name) for f in dataclasses.fields(Settings)} - {"file"}
    assert {row[0] for row in rows("Settings")} == names


def test_every_method_of_a_config_has_its_row() -> None:
    listed = {word.partition("(")[0] for row in rows("Configs") for word in row}
    methods = {
        name
        for name, _ in inspect.getmembers(PatchConfig, inspect.isfunction)
        if not name.startswith(("_", "get_"))
    }
    assert listed == methods | {"create_patch_from_external"}
    fields = {f.name for f in dataclasses.fields(PatchConfig)}
    lists = PAGE.split("The lists (", 1)[1].split(")", 1)[0]
    assert set(re.findall(r"`(\w+)`", lists)) < fields


def test_methods_are_called_as_the_page_says() -> None:
    words = [w for row in rows("Configs") for w in row if "(" in w and "..." not in w]
    assert len(words) == 8
    for word in words:
        name, _, inside = word.removesuffix(")").partition("(")
        method = getattr(PatchConfig, name)
        said = [part.strip() for part in inside.split(",")]
        has = list(inspect.signature(method).parameters.values())[1:]
        spelled = [str(p.replace(annotation=inspect.Parameter.empty)) for p in has]
        if name == "add_helper":  # `()` too
            spelled = ["obj"]
        assert spelled == said, name


def test_the_migration_has_five_lines() -> None:
    section = PAGE.split("\n## Migration\n", 1)[1].split("\n## ", 1)[0]
    assert len(re.findall(r"^\d\. ", section, re.M)) == 5
