"""What a process tells of itself: its tasks with stacks and ages, and where its memory comes from."""

from __future__ import annotations

import asyncio
import tracemalloc

import pytest

from streamcrawl.work.inspection import DEPTH_MAX, describe_tasks, sample_memory, stamped_tasks


async def deep(levels: int, gate: asyncio.Event) -> None:
    if levels:
        await deep(levels - 1, gate)
    else:
        await gate.wait()


async def test_tasks_are_told_oldest_first_with_the_whole_line_of_awaits() -> None:
    gate = asyncio.Event()
    unstamped = asyncio.create_task(gate.wait(), name="unstamped")
    loop = asyncio.get_running_loop()
    loop.set_task_factory(stamped_tasks)
    older = asyncio.create_task(deep(2, gate), name="older")
    younger = asyncio.create_task(deep(2 * DEPTH_MAX, gate), name="younger")
    await asyncio.sleep(0)
    told = {row["name"]: row for row in describe_tasks()["tasks"]}
    assert [name for name in told if name in ("unstamped", "older", "younger")] == ["unstamped", "older", "younger"]
    assert told["unstamped"]["age_s"] is None
    assert told["older"]["age_s"] >= told["younger"]["age_s"] >= 0
    assert [line.rpartition(" ")[2] for line in told["older"]["stack"]] == [*["deep"] * 3, "Event.wait", "FutureIter"]
    assert told["older"]["stack"][0].startswith("tests/unit/test_inspection.py:")
    assert told["older"]["stack"][3].startswith("asyncio/locks.py:")
    assert len(told["younger"]["stack"]) == DEPTH_MAX
    gate.set()
    await asyncio.gather(unstamped, older, younger)
    loop.set_task_factory(None)


async def test_memory_that_was_allocated_meanwhile_is_told_by_place() -> None:
    kept: list[bytes] = []

    async def allocate() -> None:
        kept.append(bytes(3_000_000))

    sampled, _ = await asyncio.gather(sample_memory(0.05), allocate())
    assert sampled["held_bytes"] >= 3_000_000
    largest = sampled["places"][0]
    assert largest["bytes"] == pytest.approx(3_000_000, rel=0.01)
    assert largest["count"] >= 1
    assert "tests/unit/test_inspection.py" in largest["stack"][-1]
    assert not tracemalloc.is_tracing()


async def test_two_samples_at_a_time_are_refused() -> None:
    first, second = await asyncio.gather(sample_memory(0.05), sample_memory(0.0))
    assert "places" in first
    assert "already" in second["error"]
