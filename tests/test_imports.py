"""Imports go one way: the plans need numpy and attrs, and nothing of them loads PyTorch."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

EVERY_MODULE = """
import importlib, pkgutil, sys
import hpfun
names = sorted(m.name for m in pkgutil.walk_packages(hpfun.__path__, "hpfun."))
skipped = []
for name in names:
    if name.endswith(".__main__"):
        continue
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] not in {"cyclopts", "rich", "matplotlib", "hypothesis"}:
            raise
        skipped.append(name)
assert len(names) - len(skipped) > 20, (names, skipped)
assert "torch" not in sys.modules, "torch was loaded"
assert "hpfun_torch" not in sys.modules, "hpfun_torch was loaded"
"""

PACKAGE_ALONE = """
import sys
before = set(sys.modules)
import hpfun
loaded = {
    name.split(".")[0]
    for name in set(sys.modules) - before
    if getattr(sys.modules[name], "__spec__", None) is not None
}
print(*sorted(loaded - set(sys.stdlib_module_names)))
"""


def run(program):
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_no_module_of_the_plans_loads_torch():
    run(EVERY_MODULE)


def test_the_package_alone_loads_numpy_and_attrs_and_nothing_else():
    assert set(run(PACKAGE_ALONE).split()) <= {"hpfun", "numpy", "attr", "attrs"}
