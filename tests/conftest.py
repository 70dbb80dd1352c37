"""What holds for every test: how many examples Hypothesis draws, the report of the contract."""

from __future__ import annotations

import os
import signal

from hypothesis import settings

pytest_plugins = ["trunkline_workers.testing"]

# A shell that starts a program in the background has it ignore Ctrl-C, and so would every program
# that the tests start and interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# No deadline: other programs share the machine. `HYPOTHESIS_PROFILE=ci` is for runs by hand.
settings.register_profile("dev", max_examples=50, deadline=None)
settings.register_profile("default", max_examples=100, deadline=None)
settings.register_profile("ci", max_examples=1000, deadline=None, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))
