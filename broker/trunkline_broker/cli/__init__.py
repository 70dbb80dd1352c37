"""The `trunkline` command: a client program that ships with the broker, one file per group."""
