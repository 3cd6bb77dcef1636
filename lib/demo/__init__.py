"""The demonstration checkpoint that ships with ntool."""
