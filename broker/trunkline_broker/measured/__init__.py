"""What the broker measures and keeps: tallies, metrics, usage ledger, spans; no waiting."""
