"""Field cases: public bug reports of LLM gateways, replayed through the real adapter."""
