"""Where worker children come from: one process that has everything imported and forks a child on demand.

Starting an interpreter and importing takes a third of a second of CPU each time; a fork takes a hundredth. So a crawl
starts sooner, and a child that was killed is replaced before its host notices. The nursery has one thread and no event
loop, which is what makes forking safe; it does no work and holds no state. When it dies, its children go on and the
supervisor starts another one; when the supervisor dies, it ends.

The first one is forked from the command itself (`early_nursery`), before that has a loop, threads or connections:
what both import is imported once. Every later one is a new interpreter, because then it is too late to fork.

The supervisor sends a role with three descriptors (control line, events, board) over a socket; the nursery answers with
the process id, and later with its exit code. `Nursery` is the supervisor's side, `main` the process.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import importlib
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import traceback
from typing import TYPE_CHECKING, Any, Final

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterator

ROLES: Final = {
    "fetch": "streamcrawl.work.worker:run_worker",
    "stage": "streamcrawl.work.stage_worker:run_stage",
    "sink": "streamcrawl.sinks.child:run_sink",
}
"""The coroutine of each role. By name: sinks is a later room than this one."""
EXIT_UNKNOWN: Final = -9
"""Of a child whose nursery died before it: nobody can wait for it, so it counts as killed."""
EXIT_CODE_WAIT_S: Final = 1.0
LAST_EVENTS_S: Final = 0.2
EVENT_MAX_BYTES: Final = 16 * 1024 * 1024
NURSERIES_MAX: Final = 5
"""Tried for one child: one may be killed by chance, five in a row have a cause."""
BIRTH_WAIT_S: Final = 30.0
"""A nursery that answers no sooner is stuck, or stopped: it is killed and another one asked. Its start takes one."""
CLOSE_WAIT_S: Final = 1.0
_FORKED_POLL_S: Final = 0.005
_MESSAGE_MAX: Final = 4096


_Line = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class _Word(msgspec.Struct, frozen=True):
    """What the nursery says: `pid` was born (code None) or has ended with `code`."""

    pid: int
    code: int | None = None


class Offspring:
    """One child process, as far as its supervisor can see it."""

    def __init__(self, pid: int, control: _Line, events: _Line) -> None:
        self.pid = pid
        self._control = control
        self._events = events
        self.returncode: int | None = None
        self.exited: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def say(self, line: str) -> None:
        """Send one line over the control line; a child that is gone does not hear it, and need not."""
        if not self._control[1].is_closing():
            self._control[1].write(line.encode() + b"\n")

    def kill(self) -> None:
        if self.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    async def read_event(self) -> bytes:
        """Return the next line of the child's events; empty when it has ended.

        A child holds its end of the events until it is gone, so their end is its end, whatever happened to the nursery.
        Processes of its handlers may hold that end longer: its exit code ends the reading too.
        """
        line = asyncio.ensure_future(self._events[0].readline())
        await asyncio.wait((line, self.exited), return_when=asyncio.FIRST_COMPLETED)
        if not line.done():
            await asyncio.wait((line,), timeout=LAST_EVENTS_S)
        if line.done():
            return line.result()
        line.cancel()
        return b""

    async def wait(self) -> int:
        """Return the exit code, negative for a signal. Call it once the events have ended."""
        try:
            async with asyncio.timeout(EXIT_CODE_WAIT_S):
                self.returncode = await asyncio.shield(self.exited)
        except TimeoutError:
            self.returncode = EXIT_UNKNOWN
        self._control[1].close()
        self._events[1].close()
        return self.returncode


class _Forked:
    """A nursery that was forked, as far as `Nursery` needs to see a process."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._code: int | None = None

    @property
    def returncode(self) -> int | None:
        if self._code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self._code = os.waitstatus_to_exitcode(status)
        return self._code

    def kill(self) -> None:
        if self.returncode is None:
            os.kill(self.pid, signal.SIGKILL)

    async def wait(self) -> int:
        while (code := self.returncode) is None:  # noqa: ASYNC110
            await asyncio.sleep(_FORKED_POLL_S)  # asyncio waits for no process but those it started
        return code


_early: list[tuple[socket.socket, _Forked]] = []
"""The nursery that `early_nursery` forked, until a `Nursery` takes it."""


@contextlib.contextmanager
def early_nursery() -> Iterator[None]:
    """Fork the first nursery of this process now, while nothing stands in the way; what nobody took ends with it.

    Does nothing where there are threads already: a fork would copy the locks that they hold.
    """
    if threading.active_count() > 1:
        yield
        return
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    pid = os.fork()
    if pid == 0:
        # Whatever happens, this process must not go on as a second one of the command.
        try:
            ours.close()
            os.setpgid(0, 0)  # as for one that is started: Ctrl-C is the supervisor's to answer
            nothing = os.open(os.devnull, os.O_RDONLY)
            os.dup2(nothing, 0)
            os.close(nothing)
            serve(theirs)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    theirs.close()
    _early.append((ours, _Forked(pid)))
    try:
        yield
    finally:
        while _early:
            ours, process = _early.pop()
            ours.close()
            process.kill()  # it has no children, and may be in the middle of its imports
            os.waitpid(process.pid, 0)


class Nursery:
    """Starts children. One for a supervisor; replaced by itself when it was killed."""

    def __init__(self) -> None:
        self._process: asyncio.subprocess.Process | _Forked | None = None
        self._socket: socket.socket | None = None
        self._reading: asyncio.Task[None] | None = None
        self._born: asyncio.Queue[int] = asyncio.Queue()
        """Process ids as they are born; 0 when the nursery died. Another queue for each nursery."""
        self._offspring: dict[int, Offspring] = {}
        self._ended: dict[int, int] = {}
        self._lock = asyncio.Lock()

    async def start_child(self, role: str, board_fd: int, capacity: int) -> Offspring:
        """Fork a child for a role; its board's descriptor is passed on.

        Raises:
            OSError: no process can be started.
        """
        for _ in range(NURSERIES_MAX):
            # New lines for each try: a nursery that died may have forked a child that it could not tell us of. That one
            # ends with its lines; two children on the same lines would each get a part of what is said.
            control_ours, control_theirs = socket.socketpair()
            events_ours, events_theirs = socket.socketpair()
            with control_theirs, events_theirs:
                async with self._lock:
                    pid = await self._ask(role, capacity, [control_theirs.fileno(), events_theirs.fileno(), board_fd])
            if pid:
                break
            control_ours.close()
            events_ours.close()
        else:
            raise OSError("worker processes cannot be started: their parent process dies at once")
        # Both ends of each: asyncio closes a connection when the half that nobody reads or writes is collected.
        control = await asyncio.open_unix_connection(sock=control_ours)
        events = await asyncio.open_unix_connection(sock=events_ours, limit=EVENT_MAX_BYTES)
        child = Offspring(pid, control, events)
        if pid in self._ended:
            child.exited.set_result(self._ended.pop(pid))
        else:
            self._offspring[pid] = child
        return child

    async def close(self) -> None:
        """End the nursery; children that still live go on."""
        await self._hang_up()
        if self._process is not None:
            try:
                async with asyncio.timeout(CLOSE_WAIT_S):
                    await self._process.wait()
            except TimeoutError:
                self._kill(self._process)  # stopped, say; it holds nothing, and a crawl must not wait for it for ever
                await self._process.wait()

    async def _ask(self, role: str, capacity: int, fds: list[int]) -> int:
        """Return the process id of a new child; 0 when the nursery died before it answered."""
        if self._process is None or self._process.returncode is not None or self._reading is None:
            await self._start()
        assert self._socket is not None
        try:
            socket.send_fds(self._socket, [f"{role} {capacity}".encode()], fds)
            async with asyncio.timeout(BIRTH_WAIT_S):
                pid = await self._born.get()
        except (BrokenPipeError, ConnectionResetError):
            pid = 0
        except (TimeoutError, BlockingIOError):
            assert self._process is not None
            self._kill(self._process)
            pid = 0
        if not pid:
            self._process = None
        return pid

    @staticmethod
    def _kill(process: asyncio.subprocess.Process | _Forked) -> None:
        with contextlib.suppress(ProcessLookupError):
            process.kill()

    async def _start(self) -> None:
        early = _early.pop() if _early else None
        if early is not None:
            ours, self._process = early
        else:
            ours, self._process = await self._start_interpreter()
        ours.setblocking(False)
        await self._hang_up()
        self._socket, self._born = ours, asyncio.Queue()
        self._reading = asyncio.create_task(self._listen(ours, self._born), name="nursery")

    async def _hang_up(self) -> None:
        # First the loop must watch the line no longer: its number is soon that of another one. Of that one it then
        # tells nothing, and the nursery at its other end was waited for in vain.
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)
        if self._socket is not None:
            self._socket.close()

    @staticmethod
    async def _start_interpreter() -> tuple[socket.socket, asyncio.subprocess.Process]:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "streamcrawl.work.nursery",
                str(theirs.fileno()),
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                # In a group of its own: Ctrl-C is the supervisor's to answer, it stops children in order.
                process_group=0,
            )
        return ours, process

    async def _listen(self, ours: socket.socket, born: asyncio.Queue[int]) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                message = await loop.sock_recv(ours, _MESSAGE_MAX)
            except OSError:
                message = b""
            if not message:
                break
            word = msgspec.json.decode(message, type=_Word)
            if word.code is None:
                born.put_nowait(word.pid)
                continue
            child = self._offspring.pop(word.pid, None)
            if child is None:
                self._ended[word.pid] = word.code
            elif not child.exited.done():
                child.exited.set_result(word.code)
        born.put_nowait(0)
        if born is self._born:
            self._reading = None


def main() -> None:
    """The main function of a nursery that is an interpreter of its own."""
    serve(socket.socket(fileno=int(sys.argv[1])))


def serve(line: socket.socket) -> None:
    """Fork children until the supervisor closes its end."""
    gc.disable()  # all of it stays, and to look through it again and again while it grows takes a fifth of the imports
    from streamcrawl.work.child import main as child_main

    with contextlib.suppress(ImportError):
        importlib.import_module("uvloop")  # 10 ms that each child would spend on it

    roles = {role: _load(path) for role, path in ROLES.items()}
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # A child that ends wakes the loop below.
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_write, False)
    os.set_blocking(wake_read, False)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    _name_process("crawl-nursery")
    gc.freeze()
    gc.enable()
    while True:
        ready, _, _ = select.select([line.fileno(), wake_read], [], [])
        if wake_read in ready:
            with contextlib.suppress(BlockingIOError):
                os.read(wake_read, 4096)
            _report_ended(line)
        if line.fileno() not in ready:
            continue
        message, fds, _, _ = socket.recv_fds(line, _MESSAGE_MAX, 3)
        if not message:
            return
        role, _, capacity = message.decode().partition(" ")
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            line.close()
            os.close(wake_read)
            os.close(wake_write)
            os.setpgid(0, 0)
            _name_process(f"crawl-{role}")
            os.dup2(fds[0], 0)
            os.dup2(fds[1], 1)
            for fd in fds[:2]:
                os.close(fd)
            try:
                child_main(roles[role], fds[2], int(capacity))
            except BaseException:
                traceback.print_exc()  # os._exit says nothing: all that is seen would be an exit code, again and again
            finally:
                os._exit(1)  # child_main ends the process itself; falling out of here would make a second nursery
        for fd in fds:
            os.close(fd)
        line.send(msgspec.json.encode(_Word(pid)))


def _name_process(name: str) -> None:
    """Show the role in `ps` and `top`, where all would look like the nursery (Linux only; at most 15 characters)."""
    with contextlib.suppress(OSError), open("/proc/self/comm", "w", encoding="ascii") as comm:
        comm.write(name)


def _load(path: str) -> Any:
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)


def _report_ended(line: socket.socket) -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        line.send(msgspec.json.encode(_Word(pid, os.waitstatus_to_exitcode(status))))


if __name__ == "__main__":
    main()
