"""Faults at seeded points against real brokers, workers and agents; `make chaos SEED=n`."""
