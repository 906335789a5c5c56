"""The shape of the package: who imports whom, closed sets of words, and headers that are contracts."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import streamcrawl
from streamcrawl import errors

PACKAGE = Path(streamcrawl.__file__).parent
ROOMS = (
    ("errors", "settings"),
    ("rules",),
    ("store",),
    ("web",),
    ("response",),
    ("work",),
    ("queue",),
    ("crawl",),
    ("sinks",),
    ("ops",),
    ("cli",),
)
"""From the top down: a room imports from itself and from those before it."""
FLOOR = {name: floor for floor, names in enumerate(ROOMS) for name in names}
MODULES = sorted(path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py"))
SCRIPTS = sorted((PACKAGE / "store" / "lua").glob("*.lua"))
SHEBANG = re.compile(r"#!lua\b")
"""Redis takes a script's flags from it, so it stands before the header."""


def imported_rooms(module: Path) -> dict[str, int]:
    """Return the rooms of this package that a module imports from, each with a line where it does so."""
    package = ("streamcrawl", *module.relative_to(PACKAGE).parent.parts)
    rooms: dict[str, int] = {}
    for node in ast.walk(ast.parse(module.read_text("utf-8"))):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            start = ".".join(package[: len(package) + 1 - node.level]) if node.level else ""
            stem = ".".join(part for part in (start, node.module) if part)
            # `from streamcrawl import errors` names a room, `from streamcrawl.rules import urls` one of its modules
            names = [f"{stem}.{alias.name}" for alias in node.names]
        for name in names:
            first, _, rest = name.partition(".")
            room = rest.partition(".")[0]
            if first == "streamcrawl" and room in FLOOR:
                rooms.setdefault(room, node.lineno if isinstance(node, ast.stmt) else 0)
    return rooms


def test_every_module_belongs_to_a_room() -> None:
    strangers = {module for module in MODULES if module.partition("/")[0].removesuffix(".py") not in FLOOR}
    assert strangers <= {"__init__.py", "__main__.py"}


@pytest.mark.parametrize("module", [module for module in MODULES if module not in ("__init__.py", "__main__.py")])
def test_module_imports_only_from_rooms_above_its_own(module: str) -> None:
    floor = FLOOR[module.partition("/")[0].removesuffix(".py")]
    below = {room: line for room, line in imported_rooms(PACKAGE / module).items() if FLOOR[room] > floor}
    assert not below, f"{module} imports from rooms below it (room: line): {below}"


def error_classes() -> list[type[errors.StreamcrawlError]]:
    return [
        value
        for value in vars(errors).values()
        if isinstance(value, type) and issubclass(value, errors.StreamcrawlError)
    ]


def test_every_fetch_error_has_a_kind_of_its_own() -> None:
    kinds = {error.__name__: error.kind for error in error_classes() if issubclass(error, errors.FetchError)}
    assert len(set(kinds.values())) == len(kinds), kinds
    assert all(re.fullmatch(r"[a-z]+(_[a-z]+)*", kind) for kind in kinds.values()), kinds


def test_every_error_says_what_a_command_ends_with() -> None:
    assert all(isinstance(error.exit_code, errors.ExitCode) for error in error_classes())
    assert all(error.__doc__ or issubclass(error, errors.FetchError | errors.StageError) for error in error_classes())


def header_of(script: Path) -> list[str]:
    """Return the comment lines at the head of a script, after a shebang."""
    lines = script.read_text("utf-8").splitlines()
    if lines and SHEBANG.match(lines[0]):
        del lines[0]
    end = next((number for number, line in enumerate(lines) if not line.startswith("--")), len(lines))
    return lines[:end]


def missing_in_header(script: Path) -> list[str]:
    """Return what the header of a script should say and does not."""
    header = header_of(script)
    first = header[0] if header else ""
    if first.startswith("-- fragment"):
        return [] if first.startswith(f"-- fragment {script.name}: ") else [f"-- fragment {script.name}: ..."]
    text = "\n".join(header)
    wanted = {
        f"-- {script.name}: ...": first.startswith(f"-- {script.name}: "),
        "-- KEYS[1] ...": re.search(r"^-- KEYS\[1\]", text, re.MULTILINE),
        "-- ARGV[1] ...": re.search(r"^-- ARGV\[1\]", text, re.MULTILINE),
        "-- Returns ...": re.search(r"^-- Returns ", text, re.MULTILINE),
        "Repeat: ...": "Repeat: " in text,
    }
    return [words for words, is_there in wanted.items() if not is_there]


def test_every_script_has_a_header_that_is_its_contract() -> None:
    missing = {script.name: words for script in SCRIPTS if (words := missing_in_header(script))}
    assert not missing


def test_missing_part_of_a_header_is_noticed(tmp_path: Path) -> None:
    script = tmp_path / "move.lua"
    script.write_text("#!lua flags=allow-oom\n-- move.lua: moves\n--\n-- KEYS[1] state hash\n\n-- Returns {}\n")
    assert missing_in_header(script) == ["-- ARGV[1] ...", "-- Returns ...", "Repeat: ..."]
    script.write_text("local x = 1\n")
    assert "-- move.lua: ..." in missing_in_header(script)
    fragment = tmp_path / "_part.lua"
    fragment.write_text("-- fragment _part.lua: a part\n")
    assert missing_in_header(fragment) == []
    fragment.write_text("-- fragment _other.lua: a part\n")
    assert missing_in_header(fragment) == ["-- fragment _part.lua: ..."]
