"""What a worker holds, written by it and read by its supervisor through the same memory."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from streamcrawl.work.board import Board, Held, monotonic_ms

if TYPE_CHECKING:
    from collections.abc import Iterator

CAPACITY = 3
LARGEST = f"{2**64 - 1}-{2**64 - 1}"


@pytest.fixture
def supervisor() -> Iterator[Board]:
    board = Board.create(CAPACITY)
    yield board
    board.close()


@pytest.fixture
def child(supervisor: Board) -> Iterator[Board]:
    """The same memory by another descriptor, as a child has it."""
    board = Board(os.dup(supervisor.fd), CAPACITY)
    yield board
    board.close()


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="a board is a file here")
def test_board_needs_no_room_on_a_disk(supervisor: Board) -> None:
    # A mapped file on a full disk ends whoever writes to it with SIGBUS: the supervisor, with all of the crawl.
    assert "memfd:" in os.readlink(f"/proc/self/fd/{supervisor.fd}")


def test_new_board_holds_nothing(supervisor: Board) -> None:
    assert supervisor.held() == []
    assert supervisor.busy() == 0


def test_supervisor_sees_what_the_child_holds(supervisor: Board, child: Board) -> None:
    child.hold("1700000000000-0")
    child.hold(LARGEST)
    assert sorted(supervisor.held()) == [Held("1700000000000-0", 0, 0), Held(LARGEST, 0, 0)]
    assert sorted([entry.entry_id for entry in child.held()]) == ["1700000000000-0", LARGEST]


def test_ids_of_two_shards_may_be_equal(supervisor: Board, child: Board) -> None:
    child.begin(child.hold("5-1", 3))
    index = child.hold("5-1", 4)
    assert {(held.shard, held.begun_ms > 0) for held in supervisor.held()} == {(3, True), (4, False)}
    assert child.index_of("5-1", 4) == index
    assert child.index_of("5-1") is None
    child.release(index)
    assert [held.shard for held in supervisor.held()] == [3]


def test_entry_that_begins_is_stamped_with_the_common_clock(supervisor: Board, child: Board) -> None:
    before = monotonic_ms()
    child.begin(child.hold("5-1"))
    [held] = supervisor.held()
    assert before <= held.begun_ms <= monotonic_ms()


def test_released_place_is_used_again_and_starts_afresh(supervisor: Board, child: Board) -> None:
    for entry_id in ("1-0", "2-0", "3-0"):
        child.begin(child.hold(entry_id))
    index = child.index_of("2-0")
    assert index is not None
    child.release(index)
    assert child.index_of("2-0") is None
    assert {held.entry_id for held in supervisor.held()} == {"1-0", "3-0"}
    assert child.hold("4-0") == index
    assert [held.begun_ms for held in supervisor.held() if held.entry_id == "4-0"] == [0]


def test_child_cannot_hold_more_than_its_board(child: Board) -> None:
    for number in range(CAPACITY):
        child.hold(f"1-{number}")
    with pytest.raises(IndexError):
        child.hold("1-9")


def test_lease_is_stale_until_a_heartbeat_is_confirmed(supervisor: Board, child: Board) -> None:
    before_ms = monotonic_ms()
    assert child.beat_age_ms() >= before_ms, "none was ever confirmed"
    supervisor.confirm(monotonic_ms() - 250)
    assert 250 <= child.beat_age_ms() < 10_000


def test_child_shows_how_busy_it_is(supervisor: Board, child: Board) -> None:
    child.show_busy(2)
    assert supervisor.busy() == 2
    child.show_busy(0)
    assert supervisor.busy() == 0


def test_board_outlives_its_child(supervisor: Board) -> None:
    child = Board(os.dup(supervisor.fd), CAPACITY)
    child.hold("7-0")
    child.close()
    assert supervisor.held() == [Held("7-0", 0, 0)]


def test_board_has_no_name_that_could_be_left_behind(supervisor: Board) -> None:
    assert os.fstat(supervisor.fd).st_nlink == 0
