"""The wheel holds both packages and works outside the tree."""

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

USE = """
import hpfun, hpfun.workloads
from pathlib import Path
assert Path(hpfun.__file__).is_relative_to(Path.cwd()), hpfun.__file__
assert (Path(hpfun.__file__).parent / "py.typed").exists()
assert (Path(hpfun.__file__).parents[1] / "hpfun_torch" / "py.typed").exists()
plan = hpfun.indexer_task_plan((5, 3, 8), 2, 1, "locality")
assert hpfun.from_json(hpfun.to_json(plan)) == plan
"""


def test_a_wheel_builds_and_works_outside_the_tree(tmp_path):
    source = tmp_path / "source"
    source.mkdir()
    for name in ("hpfun", "hpfun_torch"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path), str(source)]
    subprocess.run(build, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    elsewhere = tmp_path / "elsewhere"
    shutil.unpack_archive(wheel, elsewhere, "zip")
    subprocess.run([sys.executable, "-c", USE], check=True, cwd=elsewhere, env={"PYTHONPATH": str(elsewhere)})
