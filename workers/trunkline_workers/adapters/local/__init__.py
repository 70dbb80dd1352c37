"""A language model on this machine: llama.cpp in the worker process."""
