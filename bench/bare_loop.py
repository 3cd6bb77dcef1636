"""The least that reading headers can cost in Python: open, length, JSON, for every shard.

`python bare_loop.py FOLDER`. No checks, nothing kept, nothing written but the count.
"""

import json
import os
import struct
import sys

count = 0
for name in sorted(os.listdir(sys.argv[1])):
    if name.endswith(".safetensors"):
        with open(os.path.join(sys.argv[1], name), "rb") as f:
            (length,) = struct.unpack("<Q", f.read(8))
            count += len(json.loads(f.read(length))) - 1  # one entry is __metadata__
print(count)
