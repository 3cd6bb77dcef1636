"""Patched modelling files: read as text, checked, generated. Nothing of the source is imported."""
