"""What `trunkline setup local` would install."""

from __future__ import annotations

from trunkline_broker.cli.venvs import requirements

DECLARED = [
    "pyzmq>=27.1",
    "typer>=0.19; extra == 'broker'",
    'httpx>=0.28; extra == "workers"',
    "uvloop>=0.22; (sys_platform != 'win32') and extra == 'workers'",
    "trunkline[workers]; extra == 'local'",
    "xllamacpp>=2025.9; extra == 'local'",
]


def test_an_extra_with_the_extras_it_names() -> None:
    """Other markers stay; the distribution itself is never asked of an index."""
    assert requirements(DECLARED, "local") == [
        "httpx>=0.28",
        "uvloop>=0.22; sys_platform != 'win32'",
        "xllamacpp>=2025.9",
    ]


def test_an_extra_that_does_not_exist() -> None:
    """It needs nothing."""
    assert requirements(DECLARED, "nosuch") == []
