"""Adapter for the providers that pydantic-ai speaks to, through our own HTTP client."""
