"""The fake provider: plays a script with pace, errors, stalls, garbage and crashes."""
