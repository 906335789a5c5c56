"""What the image is: small, without tests and tools, and content with a read-only file system and no rights."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.containers.conftest import Images

pytestmark = pytest.mark.docker

LARGEST_BYTES = 120_000_000
"""Of what the image adds to its base: 70 MB on 2026-12-01."""


def run(image: str, *command: str, entrypoint: str = "streamcrawl") -> str:
    hardened = ["--read-only", "--tmpfs", "/tmp", "--cap-drop", "ALL", "--security-opt", "no-new-privileges"]
    done = subprocess.run(
        ["docker", "run", "--rm", "--network", "none", *hardened, "--entrypoint", entrypoint, image, *command],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_command_runs_as_nobody_in_particular_on_a_read_only_file_system(images: Images) -> None:
    assert run(images.streamcrawl, "--version").startswith("streamcrawl ")
    looked = "import os, streamcrawl, sys; print(os.getuid(), os.access(sys.prefix, os.W_OK), os.getcwd())"
    assert run(images.streamcrawl, "-c", looked, entrypoint="python3").split() == ["10001", "False", "/data"]


def test_it_has_the_extras_that_it_was_built_with_and_no_others(images: Images) -> None:
    looked = "import importlib.util as u; print([name for name in ('asyncpg', 'pyarrow', 'lxml') if u.find_spec(name)])"
    assert run(images.streamcrawl, "-c", looked, entrypoint="python3").strip() == "['asyncpg']"


def test_it_has_the_package_and_its_scripts_and_neither_tests_nor_pip(images: Images) -> None:
    looked = (
        "import importlib.util as u, pathlib, streamcrawl;"
        "print(*[name for name in ('tests', 'pip', 'pytest', 'deploy') if u.find_spec(name)]);"
        "print(len(list(pathlib.Path(streamcrawl.__file__).parent.glob('store/lua/*.lua'))) > 20)"
    )
    assert run(images.streamcrawl, "-P", "-c", looked, entrypoint="python3").splitlines() == ["", "True"]


def test_it_adds_little_to_its_base(images: Images) -> None:
    history = subprocess.run(
        ["docker", "history", "--human=false", "--format", "{{.Size}}", images.streamcrawl],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    *added, _base = (int(size) for size in history.stdout.split())
    assert sum(added) < LARGEST_BYTES
