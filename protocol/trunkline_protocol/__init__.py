"""The vocabulary shared by client, broker and workers; it knows no socket, clock or process."""
