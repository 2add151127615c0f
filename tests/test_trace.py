"""The specification, the code and the tests name the same rules and the same error codes.

Nothing is run: pages are read as text, code and tests as syntax trees.
"""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from hpfun import CODES

ROOT = Path(__file__).resolve().parents[1]
RULE = re.compile(r"^- \*\*([A-Z]+-\d+)\*\*", re.MULTILINE)
CODE = re.compile(r"HP-[A-Z]+-\d{3}")


@cache
def trees(*folders: str) -> dict[str, ast.Module]:
    found = {}
    for folder in folders:
        for file in sorted((ROOT / folder).rglob("*.py")):
            found[str(file.relative_to(ROOT))] = ast.parse(file.read_text(encoding="utf-8"))
    return found


def rules() -> list[str]:
    return [rule for page in sorted((ROOT / "specs").glob("*.md")) for rule in RULE.findall(page.read_text("utf-8"))]


def calls(tree: ast.AST, name: str) -> Iterator[ast.Call]:
    """Calls of a function or method of that last name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", None)
            if called == name:
                yield node


def marks() -> Iterator[tuple[str, object]]:
    """(place, argument) of every argument of ``pytest.mark.rule``; None for one that is no literal."""
    for path, tree in trees("tests", "hpfun_torch", "hpfun").items():
        for call in calls(tree, "rule"):
            if ast.unparse(call.func) in ("pytest.mark.rule", "mark.rule"):
                for argument in call.args:
                    yield f"{path}:{call.lineno}", getattr(argument, "value", None)


@cache
def refused_codes() -> frozenset[str]:
    """Codes that stand in calls of ``refused``."""
    return frozenset(
        call.args[0].value
        for tree in trees("tests").values()
        for call in calls(tree, "refused")
        if call.args and isinstance(call.args[0], ast.Constant)
    )


@cache
def raised_codes() -> dict[str, str]:
    """Code literals of the packages with one place each; the table of codes itself does not count."""
    found: dict[str, str] = {}
    for path, tree in trees("hpfun", "hpfun_torch").items():
        table = set()
        for node in ast.walk(tree):
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            if isinstance(node, (ast.Assign, ast.AnnAssign)) and any(getattr(t, "id", "") == "CODES" for t in targets):
                table |= set(ast.walk(node))
        for node in ast.walk(tree):
            value = getattr(node, "value", None) if isinstance(node, ast.Constant) and node not in table else None
            if isinstance(value, str) and CODE.fullmatch(value):
                found.setdefault(value, f"{path}:{node.lineno}")
    return found


def test_no_rule_has_two_sentences():
    assert sorted(rules()) == sorted(set(rules()))


def test_every_rule_has_a_marked_test():
    marked = {rule for _, rule in marks()}
    assert [rule for rule in rules() if rule not in marked] == []


def test_every_mark_names_a_rule():
    known = set(rules())
    assert [(place, rule) for place, rule in marks() if rule not in known] == []


def test_every_code_that_the_code_raises_is_in_the_table_and_in_the_specification():
    listed = set(CODE.findall((ROOT / "specs" / "errors.md").read_text("utf-8")))
    raised = raised_codes()
    assert {code: place for code, place in raised.items() if code not in CODES} == {}
    assert {code: place for code, place in raised.items() if code not in listed} == {}


def test_every_code_that_the_code_raises_is_refused_in_a_test():
    assert {code: place for code, place in raised_codes().items() if code not in refused_codes()} == {}


def test_no_listed_code_is_raised_by_nothing():
    listed = set(CODE.findall((ROOT / "specs" / "errors.md").read_text("utf-8")))
    assert sorted((set(CODES) | listed) - set(raised_codes())) == []


def test_codes_in_tests_and_on_pages_exist():
    pages = {code for page in (ROOT / "specs").glob("*.md") for code in CODE.findall(page.read_text("utf-8"))}
    assert sorted((refused_codes() | pages) - set(CODES)) == []
