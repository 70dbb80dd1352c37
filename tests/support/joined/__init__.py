"""The real worker, broker and client cores joined in simulated time, with late shells."""
