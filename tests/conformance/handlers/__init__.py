"""One module per group of vector files; see `tests.conformance.runner`."""
