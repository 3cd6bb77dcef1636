"""A sibling's config, changed."""

from formkit.extending_patch_gen_config import config

config.target_file = "patched_in_place.py"
config.description = "changed in place"
config.exclude[0] = "Other"
del config.patches[0]
config.add_import("kernels", names=["fused"])
config.helpers.clear()
config.patches[0].description = "told anew"


@config.replace_function("apply", description="another function")
def apply(values):
    return values
