"""Field cases: public bug reports of LLM clients and gateways, replayed through the real adapter."""
