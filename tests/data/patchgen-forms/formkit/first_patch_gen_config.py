"""Every way of registering a patch, under a name of its own."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from patchgen import PatchConfig, PatchType, create_patch_from_external

if TYPE_CHECKING:
    from nowhere import Nothing

    config = None

try:
    import zoneinfo
except ImportError:
    zoneinfo = None

_NAME_MAP = {"Mini": "MiniMoe"}
_MORE = {**_NAME_MAP, "Gate": "Router"}
NAMES = ["fmean"]
NAMES.append("pstdev")
FORWARD, WIDTH = "Model.forward", "Model.width"

settings: PatchConfig = PatchConfig(
    "kit.modeling_mini",
    "patched_first.py",
    description="two texts " "joined",
    transformers_version="fixture-1",
)
settings.add_import("statistics", names=NAMES)
settings.add_import("fractions", None, "fr", False)
settings.drop_import_names("ramp", *("clamp", "slope"))
settings.exclude_from_output("Extra")
settings.add_post_import_block("""
    LIMIT = 3
""")


def keep_all(obj: Nothing) -> Nothing:
    return obj


# above the helper
@settings.add_helper
@functools.lru_cache(maxsize=8)
def cached(n):
    return n


@settings.add_helper()
class Scored:
    settings: int = 0

    def score(self, settings):
        return settings


def later(values):
    return values


settings.add_helper(later)
settings.add_helper_after("rotate", later)


@settings.add_helper_after("Output")
async def arrives(values):
    return values


@settings.override_method(FORWARD, description="by keyword")
@keep_all
def forward(
    self,
    settings=None,
    *,
    kind: Nothing = "(",
):
    return settings


@settings.override_method("Gate.forward")
@settings.override_method(
    "Router.forward",
    name_map=_MORE,
    description="open ( never closed",
)
def both(self, values):
    def inner(settings):
        return settings

    return inner(values)


@settings.replace_class("Norm")
class Norm:
    class Inner:
        pass


@settings.replace_function("rotate")
def rotate(values):
    return values


@settings.modify_init("Gate")
def gate_init(original_init, self):
    original_init(self)


settings.override_method(WIDTH, replacement=later, name_map=_NAME_MAP)
settings.patches.append(create_patch_from_external("Output", "types", "SimpleNamespace"))
settings.patches += [
    create_patch_from_external(
        target="mix", replacement_module="operator", replacement_name="add",
        patch_type=PatchType.FUNCTION_REPLACEMENT, description="external",
    ),
]

if __name__ == "__main__":
    print(settings)
