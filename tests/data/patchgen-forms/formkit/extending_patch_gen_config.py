"""Lists taken over from a sibling, its functions registered again."""

from formkit.first_patch_gen_config import forward, later as shared, rotate
from formkit.first_patch_gen_config import (
    settings as first,
)
from patchgen.patch_spec import PatchConfig

config = PatchConfig(source_module="kit.modeling_mini_moe", target_file="patched_extending.py")

config.additional_imports.extend(first.additional_imports)
config.post_import_blocks.extend(first.post_import_blocks)
config.helpers.extend(h for h in first.helpers if h.__name__ != "Scored")
config.positioned_helpers += first.positioned_helpers
config.drop_imported_names.update(first.drop_imported_names)
config.drop_imported_names |= {"one"}
config.drop_imported_names.discard("clamp")
config.exclude.extend([*first.exclude, "Tail"])
config.patches.extend([p for p in first.patches if p.target in ("rotate", "Norm")])

_NAME_MAP = {"Mini": "MiniMoe"}
config.override_method("MiniMoeModel.forward", replacement=forward, name_map=_NAME_MAP)
config.replace_function("rotate", rotate, description="again")
config.override_method("MiniMoeModel.step", shared, _NAME_MAP, "by position")
