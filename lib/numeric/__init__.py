"""Narrow number formats, NumPy only."""
