"""A file of an output on a real disk: locked, cut, appended to, refused."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from streamcrawl.errors import ConfigError, SinkError
from streamcrawl.sinks.files import LockedFile, check_writable
from streamcrawl.sinks.jsonl import JsonLines
from streamcrawl.sinks.output import SinkDiskFull

if TYPE_CHECKING:
    from collections.abc import Iterator

LINES = JsonLines()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "pages.jsonl"


@pytest.fixture
def file(path: Path) -> Iterator[LockedFile]:
    with LockedFile(path) as opened:
        opened.resume(0, LINES)
        yield opened


def test_records_become_lines_and_the_offset_is_their_end(file: LockedFile, path: Path) -> None:
    assert file.write(LINES.encode([b'{"a":1}', b'{"b":2}'], 0)) == 16
    assert file.write(LINES.encode([b"{}"], 16)) == 19
    assert file.write(b"") == 19
    assert path.read_bytes() == b'{"a":1}\n{"b":2}\n{}\n'


def test_resume_cuts_off_what_was_never_committed(path: Path) -> None:
    path.write_bytes(b"{}\n{}\n{half")
    with LockedFile(path) as file:
        file.resume(6, LINES)
        assert file.write(b"[]\n") == 9
    assert path.read_bytes() == b"{}\n{}\n[]\n"


def test_file_shorter_than_its_offset_is_refused_and_left_as_it_is(path: Path) -> None:
    path.write_bytes(b"{}\n")
    with LockedFile(path) as file, pytest.raises(SinkError, match=r"3 bytes long, but 6 .*--fresh"):
        file.resume(6, LINES)
    assert path.read_bytes() == b"{}\n"


def test_missing_file_of_which_records_were_committed_is_refused_and_not_made(path: Path) -> None:
    with LockedFile(path) as file, pytest.raises(SinkError, match=r"is not there, but 6 bytes of it .*Put it back"):
        file.resume(6, LINES)
    assert not path.exists()


def test_file_that_took_the_place_of_a_missing_one_is_left_alone(path: Path) -> None:
    with LockedFile(path) as file:
        path.unlink()
        path.write_bytes(b"{}\n{}\n")
        with pytest.raises(SinkError, match="is not there"):
            file.resume(6, LINES)
    assert path.read_bytes() == b"{}\n{}\n"


def test_other_file_of_enough_bytes_is_refused_and_left_as_it_is(path: Path) -> None:
    path.write_bytes(b"{} {} {} {}\n")
    with LockedFile(path) as file, pytest.raises(SinkError, match=r"no end of a line at byte 6, .* another file"):
        file.resume(6, LINES)
    assert path.read_bytes() == b"{} {} {} {}\n"


def test_second_writer_is_refused_in_one_line(file: LockedFile, path: Path) -> None:
    with pytest.raises(SinkError, match="being written by another process") as caught:
        LockedFile(path, lock_wait_s=0)
    assert "\n" not in str(caught.value)


def test_lock_ends_with_the_process_that_held_it(path: Path) -> None:
    code = (
        f"import time; from streamcrawl.sinks.files import LockedFile; f = LockedFile({str(path)!r}); print(flush=True)"
    )
    with subprocess.Popen([sys.executable, "-c", code + "; time.sleep(600)"], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        with pytest.raises(SinkError):
            LockedFile(path, lock_wait_s=0)
        holder.kill()
        LockedFile(path).close()


def test_writer_waits_for_one_that_is_about_to_end(path: Path) -> None:
    code = (
        f"import sys; from streamcrawl.sinks.files import LockedFile; f = LockedFile({str(path)!r}); "
        "print(flush=True); sys.stdin.read()"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdin is not None
        holder.stdout.readline()
        holder.stdin.close()
        LockedFile(path, lock_wait_s=20).close()


def test_deleted_file_is_noticed_before_a_record_is_lost_in_it(file: LockedFile, path: Path) -> None:
    file.write(b"{}\n")
    path.unlink()
    with pytest.raises(SinkError, match="was deleted"):
        file.write(b"{}\n")


def test_full_disk_leaves_the_file_as_it_was_and_may_be_tried_again(file: LockedFile, path: Path) -> None:
    file.write(b"{}\n")
    real = os.dup(file.fileno())
    with open("/dev/full", "r+b", buffering=0) as full:
        os.dup2(full.fileno(), file.fileno())
    # /dev/full has no name less than one, so only the disk can refuse here.
    with pytest.raises(SinkDiskFull, match="No space left"):
        file.write(b"[1]\n")
    os.dup2(real, file.fileno())
    os.close(real)
    assert file.offset == 3
    assert file.write(b"[1]\n") == 7
    assert path.read_bytes() == b"{}\n[1]\n"


def test_batch_that_fits_only_in_part_is_cut_back(path: Path) -> None:
    code = """
import resource, sys
from streamcrawl.sinks.files import LockedFile
from streamcrawl.sinks.jsonl import JsonLines
from streamcrawl.sinks.output import SinkDiskFull
resource.setrlimit(resource.RLIMIT_FSIZE, (100, resource.RLIM_INFINITY))
file = LockedFile(sys.argv[1])
file.resume(0, JsonLines())
file.write(b"x" * 60)
try:
    file.write(b"y" * 60)
except SinkDiskFull as error:
    assert "File too large" in str(error), error
    assert file.path.stat().st_size == file.offset == 60
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
assert file.write(b"z" * 60) == 120
"""
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert path.read_bytes() == b"x" * 60 + b"z" * 60


def test_new_file_follows_the_umask(path: Path) -> None:
    was = os.umask(0o027)
    try:
        LockedFile(path).close()
    finally:
        os.umask(was)
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_file_in_a_folder_that_is_missing_cannot_be_opened(tmp_path: Path) -> None:
    with pytest.raises(SinkError, match="cannot be opened: No such file"):
        LockedFile(tmp_path / "none" / "x.jsonl")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda folder: folder, "is a folder"),
        (lambda folder: folder / "none" / "x.jsonl", "does not exist; make it first"),
        (lambda folder: Path("/dev/full"), "is not an ordinary file"),
        (lambda folder: folder / ("x" * 300), "cannot be used: File name too long"),
    ],
)
def test_path_that_will_not_do_is_refused_before_the_start(tmp_path: Path, make: object, message: str) -> None:
    assert callable(make)
    with pytest.raises(ConfigError, match=message):
        check_writable(make(tmp_path))


def test_paths_that_will_do(path: Path) -> None:
    check_writable(path)
    assert not path.exists()
    path.write_bytes(b"")
    check_writable(path)


@pytest.mark.parametrize("is_there", [True, False])
def test_path_without_permission_is_refused(is_there: bool) -> None:
    # Asked by a process without privileges: root may write anywhere. `tmp_path` lies where only its owner gets.
    code = """
import os, sys
from pathlib import Path
from streamcrawl.errors import ConfigError
from streamcrawl.sinks.files import check_writable
if os.geteuid() == 0:
    os.setresgid(65534, 65534, 65534)
    os.setresuid(65534, 65534, 65534)
try:
    check_writable(Path(sys.argv[1]))
except ConfigError as error:
    print(error)
"""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        path = folder / "x.jsonl"
        if is_there:
            path.write_bytes(b"")
            path.chmod(0o444)
        folder.chmod(0o555)
        done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=False)
        folder.chmod(0o755)
    assert ("cannot be written to: no permission" if is_there else "no permission to write in") in done.stdout, done
