"""The package folder: layout, manifest, schema, checks."""
