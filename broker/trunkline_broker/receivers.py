"""What arrives on a control socket, as events of the core: one class per side, no decisions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

from trunkline_protocol.frames import ClientFrame, Frame, WorkerFrame

from trunkline_broker.core.events import (
    ClientFrameReceived,
    Event,
    FrameRejected,
    PeerDisconnected,
    Side,
    WorkerFrameReceived,
)


class _Receiver:
    side: Side

    def __init__(
        self,
        report: Callable[[Event], None],
        count: Callable[[str], None],
        drained: Callable[[], None],
    ) -> None:
        self._report = report
        self._count = count
        self._drained = drained

    def on_count(self, name: str) -> None:
        """Count something that only the socket knows."""
        self._count(name)

    def on_drained(self) -> None:
        """Pass on that nothing more comes for now."""
        self._drained()

    def on_rejected(
        self, peer: bytes, code: str, message: str, about: Mapping[str, Any] | None = None
    ) -> None:
        """Report bytes that are no frame, and what a refusal of them must name."""
        self._report(FrameRejected(self.side, peer, code, message, about))

    def on_gone(self, peer: bytes, *, is_stuck: bool = False) -> None:
        """Report the end of a connection."""
        self._report(PeerDisconnected(self.side, peer, is_stuck))


class ClientReceiver(_Receiver):
    """Takes what arrives on `control`."""

    side = Side.CLIENT

    def on_frame(self, peer: bytes, frame: Frame, pid: int | None, user: str | None = None) -> None:
        """Report a frame; the codec lets only frames of clients through on this socket."""
        self._report(ClientFrameReceived(peer, cast("ClientFrame", frame), pid, user))

    def on_guest_frame(self, peer: bytes, frame: Frame, pid: int | None) -> None:
        """Drop a frame of another user's process, which no file mode lets come here."""
        del frame, pid
        self.on_rejected(peer, "FORBIDDEN", "this socket is for the broker's own user")


class WorkerReceiver(_Receiver):
    """Takes what arrives on `workers/control`."""

    side = Side.WORKER

    def on_frame(self, peer: bytes, frame: Frame, pid: int | None, user: str | None = None) -> None:
        """Report a frame; the codec lets only frames of workers through on this socket."""
        self._report(WorkerFrameReceived(peer, cast("WorkerFrame", frame), pid, user))

    def on_guest_frame(self, peer: bytes, frame: Frame, pid: int | None) -> None:
        """Report a frame of another user's process."""
        worker_frame = cast("WorkerFrame", frame)
        self._report(WorkerFrameReceived(peer, worker_frame, pid, is_guest=True))
