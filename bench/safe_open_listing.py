"""The listing that a user of the official library writes: name, dtype, shape of every tensor.

`python safe_open_listing.py FOLDER`.
"""

import json
import os
import sys

from safetensors import safe_open

for name in sorted(os.listdir(sys.argv[1])):
    if name.endswith(".safetensors"):
        with safe_open(os.path.join(sys.argv[1], name), "numpy") as f:
            for key in f.keys():  # noqa: SIM118
                part = f.get_slice(key)
                row = {"name": key, "dtype": part.get_dtype(), "shape": part.get_shape()}
                print(json.dumps(row))
