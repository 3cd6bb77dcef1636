"""The graph builder, and layers that two families use."""
