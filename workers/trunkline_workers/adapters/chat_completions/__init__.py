"""The adapter of every provider that speaks the chat-completions API."""
