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


def test_the_import_alone_loads_nothing() -> None:
    """Not even ZeroMQ or pydantic; those come with the first name that needs them."""
    program = "import sys, trunkline; print(*sys.modules)"
    done = subprocess.run(  # noqa: S603  our own program
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    assert not loaded & {"zmq", "pydantic", "msgpack", "asyncio", "trunkline_protocol", "httpx"}
