"""How many clients a limit of open files allows, and which connections are too many."""

from __future__ import annotations

import socket

import pytest
from trunkline_broker.open_files import CLIENT_FILES, WORKER_FILES, Line, OpenFiles, no_line


def test_a_part_is_kept_back_and_half_of_it_for_workers() -> None:
    """A third, and never more than 2,048."""
    assert (OpenFiles(900).clients_line, OpenFiles(900).workers_line) == (600, 750)
    assert OpenFiles(20_000).clients_line == 20_000 - 2048
    assert (OpenFiles(256).backlog, OpenFiles(20_000).backlog) == (21, 100)


@pytest.mark.parametrize("limit", [256, 1024, 4096, 524_288])
def test_all_clients_and_workers_fit_below_the_line(limit: int) -> None:
    """With what is open already; whatever the limit, one client gets in."""
    files = OpenFiles(limit)
    clients = files.max_clients(40, 3)
    used = 40 + CLIENT_FILES * clients + WORKER_FILES * 2 * 3
    assert used <= files.clients_line
    assert clients > limit // 14
    assert files.max_clients(limit, 3) == 1


def test_a_connection_above_the_line_is_ended() -> None:
    """The descriptor stays open: it is another's; what is no connection is let be."""
    told: list[str] = []
    ours, theirs = socket.socketpair()
    with ours, theirs, open("/dev/null", "rb") as file:
        line = Line(ours.fileno(), "clients", lambda event, _: told.append(event))
        Line(ours.fileno() + 1, "clients", lambda event, _: told.append(event)).on_accepted(
            ours.fileno()
        )
        no_line().on_accepted(ours.fileno())
        assert told == []
        line.on_accepted(ours.fileno())
        assert told == ["connection_over_limit"]
        assert theirs.recv(1) == b""
        assert ours.fileno() >= 0
        Line(0, "clients", lambda event, _: told.append(event)).on_accepted(file.fileno())
        line.on_accepted(1_000_000)
        assert told == ["connection_over_limit"] * 3
        assert file.read() == b""
