"""What `import trunkline` offers, and what it costs."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys

import pytest
import trunkline


def test_every_public_name_is_there() -> None:
    """`__all__` is sorted and complete, and each name loads."""
    names = trunkline.__all__
    assert names == sorted(names)
    assert dir(trunkline) == names
    for name in names:
        assert getattr(trunkline, name) is not None


def test_type_checkers_see_the_same_names() -> None:
    """The imports for them name exactly what is loaded when it is used."""
    tree = ast.parse(inspect.getsource(trunkline))
    guarded = next(node for node in tree.body if isinstance(node, ast.If))
    imported = {
        alias.asname or alias.name
        for node in guarded.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert imported == set(trunkline.__all__)


def test_an_unknown_name_is_an_attribute_error() -> None:
    """As of every module."""
    with pytest.raises(AttributeError, match="nothing"):
        _ = trunkline.nothing


def printed_by(program: str) -> set[str]:
    """Return the words that a program prints."""
    done = subprocess.run(  # noqa: S603  our own program
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    return set(done.stdout.split())


def test_connecting_loads_what_a_call_needs_and_no_more() -> None:
    """No second event loop, no TOML, no models of answers to questions, no HTTP."""
    loaded = printed_by("import sys, trunkline; trunkline.connect; print(*sys.modules)")
    assert "trunkline_protocol.options" in loaded
    rare = {"zmq.asyncio", "tomllib", "httpx", "aiohttp", "rich", "typer", "uvloop"}
    assert not loaded & (rare | {"trunkline_protocol.models", "trunkline_broker"})


def test_connecting_builds_no_model() -> None:
    """A value of a pydantic model that is made at import costs 15 ms and is wanted by nobody."""
    models = "trunkline_protocol.wire_model.WireModel.__subclasses__()"
    built = f"[model.__name__ for model in {models} if model.__pydantic_complete__]"
    program = f"import trunkline; trunkline.connect; import trunkline_protocol; print(*{built})"
    assert printed_by(program) == set()


def test_the_import_alone_loads_nothing() -> None:
    """Not even ZeroMQ or pydantic; those come with the first name that needs them."""
    program = "import sys, trunkline; print(*sys.modules)"
    loaded = {name.partition(".")[0] for name in printed_by(program)}
    assert not loaded & {"zmq", "pydantic", "msgpack", "asyncio", "trunkline_protocol", "httpx"}
