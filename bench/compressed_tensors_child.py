"""`python compressed_tensors_child.py FOLDER OUT`: every FP8 tensor of a folder dequantised by the
peer's own function, and the files written again, as its users do it with a few lines."""

import glob
import os
import sys

import torch
from compressed_tensors.quantization import QuantizationArgs
from compressed_tensors.quantization.lifecycle.forward import dequantize
from safetensors import safe_open
from safetensors.torch import save_file

source, out = sys.argv[1:]
os.makedirs(out, exist_ok=True)
args = QuantizationArgs(num_bits=8, type="float", strategy="block", block_structure=[128, 128])
for path in sorted(glob.glob(f"{source}/*.safetensors")):
    dense = {}
    with safe_open(path, "pt") as f:
        for name in f.keys():  # noqa: SIM118
            if name.endswith(".weight"):
                scale = f.get_tensor(f"{name}_scale_inv")
                codes = f.get_tensor(name)
                dense[name] = dequantize(codes, scale, args=args, dtype=torch.bfloat16)
    save_file(dense, f"{out}/{os.path.basename(path)}", metadata={"format": "pt"})
