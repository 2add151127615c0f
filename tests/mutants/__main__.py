"""Run all mutants: ``python -m tests.mutants [--rule ID ...]``; exit 1 if one survives or a rule has none."""

import argparse
import contextlib
import importlib
import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

import attrs
import pytest
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from tests.mutants import PROFILE, TREE
from tests.mutants.mutant import Mutant

ROOT = Path(__file__).parents[2]
MODULES = (
    "exchange",
    "indexer",
    "executors",
    "sequence",
    "recompute",
    "npu",
    "attention",
    "layers",
    "batch",
    "sharding",
    "batching",
    "dense",
)
COPIED = ("hpfun", "hpfun_torch", "tests", "specs", "pyproject.toml")
SECONDS = 120
BASELINE_SECONDS = 1800
WIDTH = 100
RULE = re.compile(r"^- \*\*([A-Z]+-\d+)\*\*", re.MULTILINE)
FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+?::\S+)", re.MULTILINE)


@attrs.frozen
class Run:
    """How one mutant ended: ``killed``, ``timeout`` (which counts as killed), ``survived`` or ``error``."""

    mutant: Mutant
    end: str
    by: str
    seconds: float


def known_rules() -> list[str]:
    """Ids of all rules of the specification, in reading order."""
    return [rule for page in sorted((ROOT / "specs").glob("*.md")) for rule in RULE.findall(page.read_text())]


def all_mutants() -> list[Mutant]:
    """The mutants of every family that has some."""
    found = []
    for name in MODULES:
        if importlib.util.find_spec(f"tests.mutants.{name}"):
            found += importlib.import_module(f"tests.mutants.{name}").MUTANTS
    return found


def misfits(tree: Path, mutants: Iterable[Mutant], rules: Sequence[str]) -> Iterator[str]:
    """What is wrong with the mutants themselves: an unknown rule, a text that does not occur exactly once."""
    for mutant in mutants:
        if mutant.rule not in rules:
            yield f"{mutant.rule} ({mutant.path}) is no rule of specs/"
        file = tree / mutant.path
        times = file.read_text().count(mutant.old) if file.exists() else 0
        if times != 1:
            yield f"{mutant.rule}: the old text occurs {times} times in {mutant.path}: {mutant.old.strip()[:60]!r}"


class _Marks:
    """Pytest plugin: node ids, without parameters, of the tests that each rule marks."""

    def __init__(self) -> None:
        self.tests: dict[str, list[str]] = {}

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        for item in items:
            for mark in item.iter_markers("rule"):
                for rule in mark.args:
                    node = item.nodeid.split("[")[0]
                    if node not in self.tests.setdefault(rule, []):
                        self.tests[rule].append(node)


def marked_tests() -> dict[str, list[str]]:
    """Tests by rule, from one collection of the whole suite."""
    marks = _Marks()
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
        code = pytest.main(["--collect-only", "-q", "-p", "no:cacheprovider", str(ROOT / "tests")], plugins=[marks])
    if code != pytest.ExitCode.OK:
        raise SystemExit(f"the tests cannot be collected (pytest exit {int(code)})")
    return marks.tests


@contextlib.contextmanager
def copied_tree(root: Path) -> Iterator[Path]:
    """A fresh copy of what tests need, gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
        for name in COPIED:
            source = root / name
            if source.is_dir():
                shutil.copytree(source, Path(folder) / name, ignore=shutil.ignore_patterns("__pycache__"))
            elif source.exists():
                shutil.copy2(source, folder)
        yield Path(folder)


def run_tests(tree: Path, arguments: Sequence[str], seconds: float) -> tuple[int | None, str]:
    """Exit code (None: out of time) and output of pytest in ``tree``, on the package that lies there."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(tree),
        "PYTHONDONTWRITEBYTECODE": "1",
        "COLUMNS": "300",  # pytest cuts long test names
        TREE: str(tree),
    }
    plugins = ["-p", "no:cacheprovider", "-p", "tests.mutants", f"--hypothesis-profile={PROFILE}"]
    command = [sys.executable, "-m", "pytest", "-q", "--tb=no", *plugins]
    process = subprocess.Popen(
        [*command, *arguments],
        cwd=tree,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,  # tests may start ranks; they end with the group
    )
    try:
        output, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        output = None
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return (None, "") if output is None else (process.returncode, output)


def failing_already(root: Path, tests: Sequence[str]) -> list[str]:
    """Tests that fail on the code as it is: they cannot tell a mutant."""
    with copied_tree(root) as tree:
        code, output = run_tests(tree, tests, BASELINE_SECONDS)
    if code not in (0, 1):
        raise SystemExit(f"the unchanged code cannot be tested (pytest exit {code})\n{output[-2000:]}")
    return FAILED.findall(output)


def run_mutant(root: Path, mutant: Mutant, tests: Sequence[str], deselected: Sequence[str]) -> Run:
    """Apply one mutant to a copy and run the tests of its rule."""
    start = time.monotonic()
    if not tests:
        return Run(mutant, "survived", "no test is marked with this rule", 0.0)
    with copied_tree(root) as tree:
        file = tree / mutant.path
        file.write_text(file.read_text().replace(mutant.old, mutant.new))
        skipped = [part for test in deselected for part in ("--deselect", test)]
        code, output = run_tests(tree, ["-x", *skipped, *tests], SECONDS)
    seconds = time.monotonic() - start
    failed = FAILED.findall(output)
    if code is None:
        return Run(mutant, "timeout", f"no end within {SECONDS} s", seconds)
    if code == pytest.ExitCode.TESTS_FAILED and failed:
        return Run(mutant, "killed", failed[0], seconds)
    if code in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        return Run(mutant, "survived", "", seconds)
    return Run(mutant, "error", (output.strip().splitlines() or [f"pytest exit {code}"])[-1], seconds)


def table_of(runs: Iterable[Run], order: Sequence[str]) -> Table:
    """One row a mutant, in the order of the rules."""
    table = Table(width=WIDTH, show_lines=False)
    table.add_column("rule", no_wrap=True)
    table.add_column("mutant", ratio=5, overflow="ellipsis", no_wrap=True)
    table.add_column("killed by", ratio=5, overflow="ellipsis", no_wrap=True)
    table.add_column("s", justify="right", no_wrap=True)
    styles = {"killed": "", "timeout": "yellow", "survived": "bold red", "error": "bold red"}
    for run in sorted(runs, key=lambda run: order.index(run.mutant.rule)):
        by = run.by.rpartition("::")[2].removeprefix("test_") if run.end == "killed" else f"{run.end.upper()} {run.by}"
        table.add_row(
            run.mutant.rule, _escaped(_change(run.mutant)), _escaped(by), f"{run.seconds:.1f}", style=styles[run.end]
        )
    return table


def _escaped(text: str) -> str:
    return text.replace("[", r"\[")


def _change(mutant: Mutant) -> str:
    """The new text around the first character that differs, as one line."""
    at = next(
        (i for i, (a, b) in enumerate(zip(mutant.old, mutant.new, strict=False)) if a != b),
        min(len(mutant.old), len(mutant.new)),
    )
    at = max(mutant.new.rfind(" ", 0, max(at - 8, 0)), 0) if at < len(mutant.new) else 0
    name = Path(mutant.path).stem
    return f"{name}: " + (" ".join(mutant.new[at:].split()) or f"without {' '.join(mutant.old.split())}")


def run_all(root: Path, mutants: Sequence[Mutant], workers: int) -> tuple[list[Run], list[str]]:
    """Every mutant's end, and the tests that fail without any."""
    tests = marked_tests()
    runs: list[Run] = []
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True, width=WIDTH)) as progress:
        task = progress.add_task("tests without a mutant", total=None)
        needed = sorted({test for mutant in mutants for test in tests.get(mutant.rule, [])})
        failing = failing_already(root, needed) if needed else []
        progress.update(task, description="mutants", total=len(mutants))
        with ThreadPoolExecutor(workers) as pool:
            jobs = [pool.submit(run_mutant, root, mutant, tests.get(mutant.rule, []), failing) for mutant in mutants]
            for job in as_completed(jobs):
                runs.append(job.result())
                progress.advance(task)
    return runs, failing


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the mutants; 0 only if every one is killed and every rule has one."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--rule", action="append", metavar="ID", help="only this rule (may be given again)")
    parser.add_argument("--workers", type=int, default=2, help="processes at a time (2)")
    chosen = parser.parse_args(arguments)
    console = Console(width=WIDTH)

    rules, mutants = known_rules(), all_mutants()
    if chosen.rule:
        unknown = [rule for rule in chosen.rule if rule not in rules]
        if unknown:
            parser.error(f"no rule of specs/: {', '.join(unknown)}")
        rules = [rule for rule in rules if rule in chosen.rule]
        mutants = [mutant for mutant in mutants if mutant.rule in chosen.rule]
    with copied_tree(ROOT) as root:  # one state of the code for the whole run, whatever is edited meanwhile
        wrong = list(misfits(root, mutants, rules))
        if wrong:
            console.print("\n".join(wrong), markup=False, style="red")
            return 1
        runs, failing = run_all(root, mutants, chosen.workers)

    console.print(table_of(runs, rules))
    ends = [run.end for run in runs]
    console.print(
        f"{len(runs)} mutants: {ends.count('killed')} killed, {ends.count('timeout')} out of time, "
        f"{ends.count('survived')} survived, {ends.count('error')} broken."
    )
    bare = [rule for rule in rules if rule not in {mutant.rule for mutant in mutants}]
    if bare:
        console.print(f"Rules without a mutant: {', '.join(bare)}", style="red", markup=False)
    if failing:
        console.print("Fail without any mutant:\n" + "\n".join(failing), style="red", markup=False)
    return int(bool(bare or failing or "survived" in ends or "error" in ends))


if __name__ == "__main__":
    sys.exit(main())
