"""`python qwen4_exp_peer_child.py FOLDER TOKENS DECODE [ROUNDS]`: the same as qwen4_exp_child.py,
by the published implementation in PyTorch, on as many threads as there are cores."""

import json
import os
import sys
import time

import torch
from transformers import AutoModelForCausalLM

folder, tokens, decode = sys.argv[1], sys.argv[2], int(sys.argv[3])
rounds = int(sys.argv[4]) if len(sys.argv) > 4 else 3
torch.set_num_threads(len(os.sched_getaffinity(0)))
model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
with open(tokens) as f:
    ids = torch.tensor([json.load(f)])
prefill, step = [], []
with torch.inference_mode():
    model(input_ids=ids[:, :64], use_cache=True)
    for _ in range(rounds):
        started = time.perf_counter()
        out = model(input_ids=ids, use_cache=True)
        token = out.logits[:, -1:].argmax(-1)
        prefill.append(time.perf_counter() - started)
        chosen, started = [], time.perf_counter()
        for _ in range(decode):
            chosen.append(int(token))
            out = model(input_ids=token, past_key_values=out.past_key_values, use_cache=True)
            token = out.logits[:, -1:].argmax(-1)
        step.append((time.perf_counter() - started) / decode)
print(json.dumps({"prefill": min(prefill), "token": min(step), "chosen": chosen}))
