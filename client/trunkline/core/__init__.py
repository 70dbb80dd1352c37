"""The pure half of the client: what to say to a broker and what an application may read."""
