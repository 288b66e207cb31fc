# SPDX-License-Identifier: Apache-2.0
"""The rooms of the package, read from its syntax trees: who may import whom, and who may load a framework."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src"

#: Rooms that apply a plan, each with a `script` folder for unmodified scripts.
RUNTIMES = ("torch", "jax", "keras")
#: Rooms from the ground up. A room imports from lower lines only, not from its neighbours.
LEVELS = (
    ("errors", "language", "_version"),
    ("formats", "files"),
    ("hardware", "stats"),
    ("plan",),
    ("tap", "exporters"),
    ("census",),
    RUNTIMES,
    ("probe", "rehearse"),
    ("planner", "scaffold"),
    ("report",),
    ("cli",),
    ("__main__",),
)
LEVEL_OF = {room: level for level, rooms in enumerate(LEVELS) for room in rooms}

FRAMEWORKS = frozenset(
    "accelerate deepspeed flax haiku jax jmp keras lightning optax pytorch_lightning tensorflow torch "
    "transformers".split()
)
#: Rooms whose files may import a framework; elsewhere only a file that is named after one may import it.
FRAMEWORK_ROOMS = frozenset({"tap", "torch", "jax", "keras", "probe", "rehearse"})
#: What the command line's own process uses of these rooms: it starts children and reads what they wrote.
FRAMEWORK_FREE = frozenset(
    {
        "floatwise.jax",
        "floatwise.jax.policy_text",
        "floatwise.keras",
        "floatwise.keras.plan_support",
        "floatwise.keras.report",
        "floatwise.probe",
        "floatwise.probe.flops",
        "floatwise.probe.recording",
        "floatwise.rehearse",
        "floatwise.rehearse.comparison",
        "floatwise.rehearse.comparison_rows",
        "floatwise.rehearse.evidence",
        "floatwise.rehearse.float8_scaling",
        "floatwise.rehearse.float8_texts",
        "floatwise.rehearse.loss_spread",
        "floatwise.rehearse.memory_curve",
        "floatwise.rehearse.memory_prediction",
        "floatwise.rehearse.memory_states",
        "floatwise.rehearse.nonfinite",
        "floatwise.rehearse.roofline",
        "floatwise.rehearse.roofline_rates",
        "floatwise.rehearse.step_record",
        "floatwise.rehearse.verdict",
        "floatwise.tap",
        "floatwise.tap.channel",
        "floatwise.tap.job",
        "floatwise.tap.launch",
        "floatwise.tap.script_framework",
    }
)

MOST_LINES = 400
#: Folders of one person's machine, options that choose a package host, unfinished work. The brackets keep the
#: expression from finding itself.
FORBIDDEN = re.compile(
    r"/[h]ome/|/[r]oot/|/[U]sers/|/[w]ork/|[i]ndex-url|[f]ind-links|\b[T]ODO\b|\b[F]IXME\b|\b[X]XX\b"
)


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")


MODULES = {module_name(path): path for path in sorted((SOURCE / "floatwise").rglob("*.py"))}


@cache
def tree(module: str) -> ast.Module:
    return ast.parse(MODULES[module].read_text(encoding="utf-8"))


def imports(module: str) -> Iterator[tuple[int, str]]:
    """Yields line and module of every import: at the top, inside functions and for type checking alike."""
    for node in ast.walk(tree(module)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            origin = "." * node.level + (node.module or "")
            for alias in node.names:
                full = f"{origin}.{alias.name}"
                yield node.lineno, full if full in MODULES else origin


def room_of(module: str) -> str:
    """Returns the room of `floatwise.room.file`; empty for the package itself."""
    return module.split(".")[1] if "." in module else ""


def may_load(module: str) -> frozenset[str]:
    """Returns the frameworks that a module of ours may import."""
    if module in FRAMEWORK_FREE:
        return frozenset()
    if room_of(module) in FRAMEWORK_ROOMS:
        return FRAMEWORKS
    return FRAMEWORKS & {module.rpartition(".")[2]}


def loaded_frameworks(code: str) -> list[str]:
    """Returns the frameworks that a fresh interpreter has loaded after `code`."""
    tell = f"print('\\n' + json.dumps(sorted({set(FRAMEWORKS)!r} & set(sys.modules))))"
    program = f"{code}\nimport json, sys\n{tell}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found: list[str] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_every_room_has_its_place() -> None:
    rooms = {room_of(module) for module in MODULES} - {""}
    assert rooms == set(LEVEL_OF), "a room came or went: say so in LEVELS and in docs/architecture.md"
    described = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    assert [room for room in sorted(rooms) if f"`{room}/`" not in described and f"`{room}.py`" not in described] == []


def test_imports_go_downwards() -> None:
    # The package itself shows rooms under TYPE_CHECKING, and loads them when they are asked for.
    wrong = [
        f"{MODULES[module]}:{line}: {room_of(module)} may not import {imported}"
        for module in MODULES
        if module != "floatwise"
        for line, imported in imports(module)
        if not goes_down(room_of(module), imported)
    ]
    assert not wrong, "\n".join(wrong)


def goes_down(here: str, imported: str) -> bool:
    if imported.partition(".")[0] not in ("floatwise", ""):
        return True
    there = room_of(imported)  # the package itself, and relative imports, have none that is known
    return there == here or LEVEL_OF.get(there, len(LEVELS)) < LEVEL_OF[here]


def test_frameworks_stay_in_their_rooms() -> None:
    wrong = [
        f"{MODULES[module]}:{line}: imports {imported}"
        for module in MODULES
        for line, imported in imports(module)
        if imported.partition(".")[0] in FRAMEWORKS - may_load(module)
    ]
    assert not wrong, "\n".join(wrong)


def test_every_imported_package_is_a_dependency() -> None:
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8").partition("\ndependencies = [")[2]
    declared = {name.replace("-", "_") for name in re.findall(r'"([a-z0-9_-]+)', project.partition("\n]")[0])}
    # pydantic and its core are released as one: each version needs exactly one of the other. PyYAML's module is yaml.
    known = declared | FRAMEWORKS | sys.stdlib_module_names | {"floatwise", "pydantic_core"}
    known |= {"yaml"} if "pyyaml" in declared else set()
    wrong = [
        f"{MODULES[module]}:{line}: {imported} is not in pyproject.toml's dependencies"
        for module in MODULES
        for line, imported in imports(module)
        if imported.partition(".")[0] not in known
    ]
    assert not wrong, "\n".join(wrong)


def test_everything_else_runs_without_a_framework() -> None:
    free = [module for module in MODULES if not may_load(module)]
    assert FRAMEWORK_FREE < set(free)
    assert loaded_frameworks("\n".join(f"import {module}" for module in free)) == []


@pytest.mark.parametrize("arguments", [["--version"], ["--help"], ["plan", "--help"], ["run", "--help"]])
def test_command_line_loads_no_framework_to_help(arguments: list[str]) -> None:
    code = (
        f"import sys; sys.argv = ['floatwise', *{arguments!r}]\n"
        "from floatwise.__main__ import main\n"
        "try: main()\n"
        "except SystemExit as leaving: assert not leaving.code, leaving.code"
    )
    assert loaded_frameworks(code) == []


def test_source_files_are_well_formed() -> None:
    others = [path for folder in ("tests", "examples", "benchmarks") for path in (ROOT / folder).rglob("*.py")]
    users = ROOT / "tests" / "scripts"
    wrong = [f"{MODULES[m]}: no module docstring" for m in MODULES if not ast.get_docstring(tree(m))]
    for path in [*MODULES.values(), *(path for path in others if users not in path.parents)]:
        text = path.read_text(encoding="utf-8")
        if not text.startswith("# SPDX-License-Identifier: Apache-2.0\n"):
            wrong.append(f"{path}: does not begin with its licence")
        if (lines := text.count("\n")) > MOST_LINES:
            wrong.append(f"{path}: {lines} lines are more than one idea")
    assert not wrong, "\n".join(wrong)


def test_modules_say_what_they_export() -> None:
    silent = {module for module in MODULES if not exports(module)}
    # The build reads the version's file as text; the files of the others are imported by their own names.
    folders = ("probe", "rehearse", "torch.distributed", "torch.scaling", *(f"{r}.script" for r in RUNTIMES))
    assert silent <= {"floatwise._version", *(f"floatwise.{folder}" for folder in folders)}


def exports(module: str) -> bool:
    """True when the module sets `__all__`."""
    assigned = [node for node in tree(module).body if isinstance(node, ast.Assign)]
    return any(ast.unparse(target) == "__all__" for node in assigned for target in node.targets)


def text_files() -> list[Path]:
    folders = ("src", "tests", "examples", "benchmarks", "docs", ".ci")
    found = [*ROOT.glob("*"), *ROOT.glob(".*.yaml"), *(p for f in folders for p in (ROOT / f).rglob("*"))]
    kinds = {".py", ".md", ".toml", ".txt", ".json", ".j2", ".css", ".js", ".svg", ".yaml", ""}
    return [path for path in found if path.is_file() and path.suffix in kinds]


def test_nothing_forbidden_is_written_anywhere() -> None:
    hits = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in text_files()
        for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1)
        if FORBIDDEN.search(line)
    ]
    assert not hits, "\n".join(hits)
