"""ONNX Runtime sessions and prefix files."""
