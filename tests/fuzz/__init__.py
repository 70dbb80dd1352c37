"""Hostile frames against a real broker, from a seed."""
