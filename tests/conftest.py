"""What holds for every test: how many examples Hypothesis draws, the report of the contract."""

from __future__ import annotations

import os
import signal

from hypothesis import settings

pytest_plugins = ["trunkline_workers.testing"]

# A shell that starts a program in the background has it ignore Ctrl-C, and `nohup` the hang-up, and
# so would every program that the tests start and signal.
for number, handler in (
    (signal.SIGINT, signal.default_int_handler),
    (signal.SIGHUP, signal.SIG_DFL),
):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, handler)

# The nets that look for streams without progress end the program of a test that they find one in.
os.environ.setdefault("TRUNKLINE_STRICT_LIVENESS", "1")

# No profile has a deadline, since other programs share the machine. `make test` draws the same
# examples at each run and keeps no database of failures, so that two runs of one commit agree.
# `make test-random` (profile "random") explores and prints how to repeat a failure.
settings.register_profile(
    "default", max_examples=100, deadline=None, derandomize=True, database=None
)
settings.register_profile("random", max_examples=1000, deadline=None, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))
