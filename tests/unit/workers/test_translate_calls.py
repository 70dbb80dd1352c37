"""The translator: tool calls in all their forms."""

from __future__ import annotations

import json

import pytest
from trunkline_workers.adapters.chat_completions.translate import DONE

from tests.unit.workers.a_response import EXACT, Result, call, calls_of, chunk


def test_parallel_calls_without_index_are_separate() -> None:
    """No index, two ids: two calls; a nameless piece continues the last."""
    both = {"tool_calls": call(id="a", name="f", arguments="{}")["tool_calls"] * 1}
    both["tool_calls"] += call(id="b", name="f", arguments='{"x":')["tool_calls"]
    assert calls_of(both, call(arguments="1}")) == [("a", "f", "{}"), ("b", "f", '{"x":1}')]


@pytest.mark.parametrize("index", [0, 1])
def test_a_call_without_index_then_one_with(index: int) -> None:
    """A later index never points at the call that had none."""
    found = calls_of(
        call(id="a", name="f", arguments="{}"),
        call(index, id="b", name="g", arguments='{"x":'),
        call(index, arguments="2}"),
    )
    assert found == [("a", "f", "{}"), ("b", "g", '{"x":2}')]


def test_a_nameless_piece_with_a_late_index_continues_the_unindexed_call() -> None:
    """An index that appears only on continuations belongs to the call before."""
    found = calls_of(call(id="a", name="f", arguments='{"x":'), call(0, arguments="1}"))
    assert found == [("a", "f", '{"x":1}')]


@pytest.mark.parametrize("blank", [None, ""])
def test_a_blank_id_or_name_changes_nothing(blank: str | None) -> None:
    """Continuations with null or empty identity keep it."""
    found = calls_of(
        call(0, id="a", name="f", arguments='{"x":'), call(0, id=blank, name=blank, arguments="1}")
    )
    assert found == [("a", "f", '{"x":1}')]


def test_another_id_and_name_under_a_used_index_is_another_call() -> None:
    """Providers that say index 0 for every call do not merge them."""
    found = calls_of(
        call(0, id="a", name="f", arguments="{}"),
        call(0, id="b", name="g", arguments='{"x":'),
        call(0, id="b", name="g", arguments="1}"),
    )
    assert found == [("a", "f", "{}"), ("b", "g", '{"x":1}')]


def test_an_id_that_changes_without_a_name_continues() -> None:
    """A provider that draws an id per piece makes one call."""
    found = calls_of(call(0, id="a", name="f", arguments="{"), call(0, id="b", arguments="}"))
    assert found == [("b", "f", "{}")]


def test_a_known_id_under_a_new_index_continues() -> None:
    """A provider that counts the index up per piece makes one call."""
    found = calls_of(call(0, id="a", name="f", arguments="{"), call(1, id="a", arguments="}"))
    assert found == [("a", "f", "{}")]


@pytest.mark.parametrize("index", ["0", 0.0])
def test_an_index_that_is_no_integer_counts_as_one(index: object) -> None:
    """`"0"` and `0.0` are 0."""
    piece = call(id="a", arguments="}")
    piece["tool_calls"][0]["index"] = index
    assert calls_of(call(0, id="a", name="f", arguments="{"), piece) == [("a", "f", "{}")]


@pytest.mark.parametrize("arguments", ["", "  ", None])
def test_blank_arguments_become_an_object(arguments: str | None) -> None:
    """A tool without parameters can be run."""
    found = calls_of(call(0, id="a", name="now", arguments=arguments))
    assert [(each[0], json.loads(each[2])) for each in found] == [("a", {})]


def test_a_call_without_a_function_keeps_its_place() -> None:
    """Missing parts are no reason to lose a call."""
    assert calls_of({"tool_calls": [{"index": 0, "id": "a"}]}) == [("a", "", "{}")]


def test_arguments_as_an_object_are_written_once() -> None:
    """An object becomes compact JSON, an identical repeat is dropped."""
    piece = call(0, id="a", name="f", arguments={"q": "x y"})
    assert calls_of(piece, piece) == [("a", "f", '{"q":"x y"}')]


def test_a_whole_text_that_is_repeated_is_dropped() -> None:
    """The same complete arguments sent again are not appended."""
    piece = call(0, id="a", name="f", arguments='{"q":1}')
    assert calls_of(piece, piece) == [("a", "f", '{"q":1}')]


def test_two_different_objects_are_malformed() -> None:
    """A call can't have two sets of arguments."""
    first, second = (call(0, id="a", name="f", arguments={"q": n}) for n in (1, 2))
    result = Result(chunk(first), chunk(second), DONE)
    assert result.thrown is not None
    assert result.thrown.code == "MALFORMED_RESPONSE"


def test_the_old_function_call_is_a_tool_call() -> None:
    """`function_call` is read too."""
    delta = {"function_call": {"name": "f", "arguments": "{}"}}
    result = Result(chunk(delta), chunk(finish="function_call"), DONE)
    assert (result.finish, result.blocks[0]["name"]) == ("tool-calls", "f")


@pytest.mark.parametrize(
    ("output", "finish"),
    [(64, "max-tokens"), (10, "MALFORMED_RESPONSE"), (None, "MALFORMED_RESPONSE")],
)
def test_cut_arguments_are_never_a_runnable_call(output: int | None, finish: str) -> None:
    """Arguments that do not parse end in a limit if it was reached, else in a failure."""
    usage = {} if output is None else {"usage": {"prompt_tokens": 1, "completion_tokens": output}}
    delta = call(0, id="a", name="f", arguments='{"q":"abc')
    result = Result(chunk(delta), chunk(finish="tool_calls", **usage), DONE, max_tokens=64)
    assert result.finish == finish


def test_raw_line_ends_in_arguments_are_accepted() -> None:
    """Control characters in strings are common and harmless."""
    assert calls_of(call(0, id="a", name="f", arguments='{"t":"a\nb"}'))[0][2] == '{"t":"a\nb"}'


def test_stop_with_calls_is_tool_calls() -> None:
    """A provider that says stop after calls wants them run."""
    delta = call(0, id="a", name="f", arguments="{}")
    assert Result(chunk(delta), chunk(finish="stop"), DONE).finish == "tool-calls"
    assert Result(chunk(delta), DONE).finish == "tool-calls"


def test_tool_calls_without_calls_is_stop() -> None:
    """A reason that nothing bears out is corrected, and an empty answer stays a failure."""
    assert Result(chunk({"content": "x"}), chunk(finish="tool_calls"), DONE).finish == "stop"
    assert Result(chunk(finish="tool_calls"), DONE).finish == "EMPTY_RESPONSE"


def test_deepseeks_calls_are_passed_on_unchanged() -> None:
    """The exact profile repairs nothing."""
    delta = call(0, id="a", name="f", arguments="{bad")
    result = Result(chunk(delta), chunk(finish="tool_calls"), DONE, rules=EXACT)
    assert (result.finish, result.blocks[0]["arguments"]) == ("tool-calls", "{bad")


def test_a_call_without_an_id_gets_one() -> None:
    """It could not be answered otherwise; ids of one response differ."""
    deltas = (call(0, name="f", arguments="{}"), call(1, id="", name="g", arguments="{}"))
    result = Result(*map(chunk, deltas), chunk(finish="tool_calls"), DONE, id_prefix="made_")
    assert [block["id"] for block in result.blocks] == ["made_0", "made_1"]
