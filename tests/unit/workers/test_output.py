"""What a worker prints, without its secrets."""

from __future__ import annotations

import io
from pathlib import Path

from trunkline_workers.output import MAX_LINE_CHARS, CleanText


def a_stream() -> tuple[CleanText, io.StringIO]:
    sink = io.StringIO()
    return CleanText(sink, lambda text: text.replace("secret", "[redacted]")), sink


def test_whole_lines_are_cleaned_and_written_at_once() -> None:
    """Also if a secret comes in two halves."""
    stream, sink = a_stream()
    print("the sec", end="", file=stream)
    assert sink.getvalue() == ""
    print("ret is out", file=stream)
    assert sink.getvalue() == "the [redacted] is out\n"
    print("a\nb\nsecret", end="", file=stream, flush=True)
    assert sink.getvalue().endswith("out\na\nb\n")
    stream.finish()
    stream.finish()
    assert sink.getvalue().endswith("b\n[redacted]")


def test_a_line_without_end_is_written_in_parts() -> None:
    """It takes no memory without end."""
    stream, sink = a_stream()
    stream.write("x" * (MAX_LINE_CHARS + 1))
    assert len(sink.getvalue()) == MAX_LINE_CHARS + 1


def test_a_long_line_is_not_cut_inside_of_a_word() -> None:
    """Half a secret in each part would be found in neither."""
    stream, sink = a_stream()
    stream.write("x" * (MAX_LINE_CHARS - 3) + " sec")
    stream.write("r")
    stream.write("et\n")
    assert "sec" not in sink.getvalue()
    assert sink.getvalue().endswith(" [redacted]\n")


def test_a_log_that_can_not_be_written_ends_nothing() -> None:
    """A full disk, or a stream that is closed already."""

    class Full(io.StringIO):
        def write(self, text: str, /) -> int:
            raise OSError(28, "No space left on device")

    stream = CleanText(Full(), str)
    assert stream.writable()
    assert not stream.isatty()
    assert stream.write("lost\n") == 5
    closed = io.StringIO()
    closed.close()
    assert CleanText(closed, str).write("lost\n") == 5


def test_a_flood_is_dropped_until_the_file_is_cut(tmp_path: Path) -> None:
    """However long nobody looks: the file stays at its bound and one line, and the loss is told."""
    path = tmp_path / "out"
    with path.open("a") as sink:
        stream = CleanText(sink, str, limit_bytes=10_000)
        for _ in range(50_000):
            print("x" * 99, file=stream)
        assert path.stat().st_size <= 10_100
        path.open("w").close()  # as the broker does
        print("after", file=stream)
        told, after = path.read_text().splitlines()
        assert told.startswith("[trunkline] too much output: ")
        assert after == "after"


def test_the_rest_of_one_huge_write_is_dropped_and_told() -> None:
    """Cleaning takes time, and the loop that runs the streams waits for it."""
    stream, sink = a_stream()
    print("\n" * 2_000_000, file=stream)
    print("after", file=stream)
    text = sink.getvalue()
    assert len(text) < 300_000
    assert "[trunkline] too much output: " in text
    assert text.split()[-2:] == ["dropped", "after"]
