"""`python -m tests.fuzz`: hostile frames against every socket of a broker, from a seed."""

from __future__ import annotations

import argparse
import json
import random
import sys
import time

from tests.fuzz.corpus import Corpus
from tests.fuzz.run import Attack
from tests.support.broker import running_broker


def main() -> int:
    """Run once; what goes wrong ends it with a traceback."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz")
    parser.add_argument("--frames", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", action="store_true", help="minimize and write the corpus")
    wanted = parser.parse_args()
    corpus = Corpus()
    begun_s = time.monotonic()
    with running_broker() as broker:
        broker.until_ready("scripted")
        attack = Attack(broker, random.Random(wanted.seed), corpus)  # noqa: S311  repeatable
        seen = attack.run(wanted.frames)
    seen["seconds"] = round(time.monotonic() - begun_s, 1)
    sys.stdout.write(json.dumps(seen, indent=1) + "\n")
    if wanted.keep:
        corpus.minimize()
        corpus.save()
    return 0


if __name__ == "__main__":
    sys.exit(main())
