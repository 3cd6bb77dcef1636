"""One file a group of check ids."""
