"""Decides the final answer to a client whose frame is not about a running call of its own.

Every frame that asks for something is answered, or asked again by the client until it can be
(SPEC 5.15). It does not know what a frame asks for beyond whether it opens an attempt.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from trunkline_protocol.codes import Code
from trunkline_protocol.failure import LlmFailure
from trunkline_protocol.frames import Failed, Lost
from trunkline_protocol.ids import CallId

from trunkline_broker.core.calls import Call, Past
from trunkline_broker.core.clients import Client
from trunkline_broker.core.hub import Hub

_GIVEN_UP: Final = LlmFailure(
    "this client seemed gone for too long, and the call was given up", Code.TRANSPORT
)
_TAKEN: Final = LlmFailure("another client has attached to this call", Code.ABORTED)
_OVER: Final = LlmFailure(
    "this call has ended, and its chunks are not kept any more", Code.TRANSPORT
)
_REPLACED: Final = LlmFailure("the broker holds another attempt of this call", Code.TRANSPORT)


class Outcomes:
    """Answers for calls that a client asks about and does not hold here."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub

    def foreign(self, client: Client, call: Call, attempt: int, *, is_opening: bool) -> None:
        """Answer about a call of another client, or of none: this one has lost it."""
        if call.client is not None:
            self._hub.count("foreign_call")
            self._fail(client, call.id, attempt, _TAKEN)
        elif is_opening:
            self._fail(client, call.id, attempt, _GIVEN_UP)
        else:
            # Detached while this client seemed gone: it cannot know what was sent since.
            self._hub.to_client(client, Lost(call.id, attempt))

    def unknown(self, client: Client, call_id: CallId, attempt: int) -> None:
        """Answer about the position of a call that is over or was never here.

        Nothing while a worker of an older broker may still name it: the client asks again.
        """
        past = self._hub.calls.past(call_id)
        if past is not None:
            self._past(client, call_id, attempt, past, is_opening=False)
        elif not self._hub.may_be_held():
            self._hub.to_client(client, Lost(call_id, attempt))
            self._hub.count("calls_lost")

    def past(self, client: Client, call_id: CallId, attempt: int, past: Past) -> None:
        """Answer an `OPEN` of a call that is over: it starts nothing."""
        self._past(client, call_id, attempt, past, is_opening=True)

    def other_attempt(self, client: Client, call: Call, attempt: int, *, is_opening: bool) -> None:
        """Answer about another attempt than the one that is held of the client's own call."""
        self._hub.count("stale_attempt")
        if is_opening:
            self._fail(client, call.id, attempt, _REPLACED)
        elif attempt < call.attempt or not self._hub.may_be_held():
            self._hub.to_client(client, Lost(call.id, attempt))

    def give_up(self, client: Client | None, call_id: CallId, attempt: int) -> None:
        """Tell a client that its call went on without it, and ended for it."""
        self._fail(client, call_id, attempt, _GIVEN_UP)

    def _past(
        self, client: Client, call_id: CallId, attempt: int, past: Past, *, is_opening: bool
    ) -> None:
        if past.client == client.id and past.failed is not None:
            self._hub.to_client(client, replace(past.failed, attempt=attempt))
        elif not is_opening:
            self._hub.to_client(client, Lost(call_id, attempt))
        elif past.client == client.id:
            self._fail(client, call_id, attempt, _OVER)
        else:
            self._fail(client, call_id, attempt, _TAKEN if past.client else _GIVEN_UP)

    def _fail(
        self, client: Client | None, call_id: CallId, attempt: int, failure: LlmFailure
    ) -> None:
        self._hub.to_client(client, Failed(call_id, attempt, failure.to_dict()))
