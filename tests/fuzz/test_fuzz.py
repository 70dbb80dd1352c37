"""Hostile frames: a short run, and everything that a long one has found worth keeping."""

from __future__ import annotations

import random

import pytest
from trunkline_protocol.codec import Direction

from tests.fuzz.corpus import Corpus, verdict
from tests.fuzz.run import Attack, replay
from tests.support.broker import running_broker

FRAMES = 8_000


def test_the_corpus_is_judged_as_it_was() -> None:
    """A change of what is refused is a change of the protocol."""
    corpus = Corpus()
    assert len(corpus.entries) > 50
    for (way, said), parts in corpus.entries.items():
        assert verdict(parts, Direction[way]) == said


@pytest.mark.integration
def test_hostile_frames_on_every_socket_hurt_nobody() -> None:
    """No crash, no spin, no growth; every refusal is counted, honest calls are served."""
    with running_broker() as broker:
        broker.until_ready("scripted")
        seen = Attack(broker, random.Random(1), Corpus()).run(FRAMES)  # noqa: S311
        assert seen["refused"] >= seen["undecodable"] > 1000
        replay(broker, Corpus().entries)
