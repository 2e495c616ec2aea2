"""Flags that one process writes for another in shared memory."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from tests.unit.verifier_service.verifier_fakes import make_row
from verifier_service.vllm.shared_flags import SharedFlags, shared_memory


@contextmanager
def both(sequences: int = 2) -> Iterator[tuple[SharedFlags, SharedFlags]]:
    """The writer and the reader."""
    memory = shared_memory(sequences)
    yield SharedFlags(memory), SharedFlags(memory)
    os.close(memory)


def test_a_stop_is_seen_until_it_goes_on() -> None:
    with both() as (writer, reader):
        assert not reader.stopped
        writer.stop()
        assert reader.stopped
        writer.go()
        assert not reader.stopped


def test_what_was_asked_for_is_seen_and_nothing_else() -> None:
    with both() as (writer, reader):
        for name in "ab":
            reader.put(name, writer.place(name))
        row = make_row("a")
        writer.ask(row)
        assert reader.asked(row)
        assert not reader.asked(replace(row, goal=4))
        assert not reader.asked(make_row("b"))


def test_a_sequence_that_ended_frees_its_place_and_leaves_nothing_in_it() -> None:
    with both(1) as (writer, reader):
        reader.put("a", writer.place("a"))
        writer.ask(make_row("a"))
        writer.forget("a")
        assert writer.place("b") == 0
        writer.free("b")
        writer.free("a")
        reader.leave("a")
        reader.put("b", writer.place("b"))
        assert writer.place("b") > 0
        assert not reader.asked(make_row("b"))


def test_nothing_runs_ahead_where_there_is_no_place_left() -> None:
    with both(1) as (writer, reader):
        for name in "ab":
            reader.put(name, writer.place(name))
        writer.ask(make_row("b"))
        assert not reader.asked(make_row("b"))
        assert not reader.stopped
