"""One file a group of check ids; `catalogue.CHECKS` lists them in the order in which they run."""
