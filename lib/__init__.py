"""All the work: readers, graphs, samplers and checks. Nothing here prints or exits."""
