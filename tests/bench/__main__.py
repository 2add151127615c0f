"""``python -m tests.bench [PART ...] [--json FILE]``: every ratio beside its limit; status 1 if one does not hold."""

import json
import sys
from pathlib import Path

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from tests.bench import attention, batch, devices, equality, plans, recompute, sequence

PARTS = {
    "locality": plans.locality,
    "huge": plans.huge,
    "routes": plans.routes,
    "exchange": devices.exchange,
    "operator": devices.operator,
    "sequence": sequence.figures,
    "batch": batch.figures,
    "recompute": recompute.figures,
    "attention": attention.figures,
    "equality": equality.figures,
}


def main(arguments: list[str]) -> int:
    path = Path(arguments[arguments.index("--json") + 1]) if "--json" in arguments else Path("build/bench.json")
    names = [name for name in arguments if name in PARTS] or list(PARTS)
    figures = []
    with Progress(console=Console(stderr=True), transient=True) as progress:
        job = progress.add_task("measuring", total=len(names))
        for name in names:
            progress.update(job, description=f"measuring {name}")
            figures.extend(PARTS[name]())
            progress.advance(job)
    table = Table("figure", "value", "limit", "holds", box=None, padding=(0, 1))
    for column in (1, 2):
        table.columns[column].justify = "right"
    for figure in figures:
        digits = 5 if figure.limit < 1.1 and figure.value > 1 else 3
        number = f"{figure.value:.1e}" if 0 < figure.value < 1e-3 else f"{figure.value:.{digits}f}"
        value = number if figure.unit else f"{figure.value:.0f}"
        table.add_row(figure.name, value, f"{figure.limit:g}", "yes" if figure.holds else "NO")
    Console(width=100).print(table)
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [
        {"name": f.name, "value": f.value, "limit": f.limit, "holds": f.holds, "unit": f.unit, **f.detail}
        for f in figures
    ]
    path.write_text(json.dumps(rows, indent=1) + "\n")
    print(f"written to {path}")
    return 0 if all(figure.holds for figure in figures) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
