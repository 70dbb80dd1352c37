"""A process that only keeps a CPU busy, until it is ended."""

if __name__ == "__main__":
    while True:
        pass
