"""`python llm_compressor_child.py FOLDER OUT`: the matrices of a folder as FP8 in blocks of 128x128
by the peer's own way from files to files, which needs no model. On a machine without a GPU."""

import sys

from llmcompressor import model_free_ptq

if __name__ == "__main__":  # it may start processes
    model_free_ptq(sys.argv[1], sys.argv[2], scheme="FP8_BLOCK", device="cpu")
