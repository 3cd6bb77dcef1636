"""`python compressed_tensors_child.py FOLDER`: every FP8 tensor of a folder dequantised by the
peer, block by block as its own function does it; nothing is written."""

import glob
import sys

import torch
from compressed_tensors.quantization import QuantizationArgs
from compressed_tensors.quantization.lifecycle.forward import dequantize
from safetensors import safe_open

args = QuantizationArgs(num_bits=8, type="float", strategy="block", block_structure=[128, 128])
for path in sorted(glob.glob(f"{sys.argv[1]}/*.safetensors")):
    with safe_open(path, "pt") as f:
        for name in f.keys():  # noqa: SIM118
            if not name.endswith(".weight"):
                continue
            scale = f.get_tensor(f"{name}_scale_inv")
            dequantize(f.get_tensor(name), scale, args=args, dtype=torch.bfloat16)
