"""One broker under light load for a long time: nothing of it may grow."""
