"""The ``hpfun`` command: plans of batches and models on the command line.

Results go to stdout; notes, progress and errors to stderr. With ``--json`` stdout holds one JSON object and
nothing else. Exit status: 0 done, 2 an input was refused (one coded line per violation), 1 anything else.
"""

import os
import sys
from collections.abc import Sequence

import attrs

try:
    import rich  # noqa: F401 - what is missing is told before the commands import it
    from cyclopts import App, CycloptsError
except ModuleNotFoundError as missing:
    raise SystemExit(f"hpfun: {missing.name} is not installed; pip install 'hpfun[cli]'") from None

from hpfun import __version__
from hpfun.cli_batch import batch
from hpfun.cli_indexer import bounds, compare, explain, plan
from hpfun.cli_options import note, print_json, stderr
from hpfun.cli_recompute import recompute
from hpfun.cli_routes import routes
from hpfun.errors import PlanError

_EXTRAS = {"torch": "transformers", "transformers": "transformers"}
app = App(
    name="hpfun",
    help="Who computes what, and who needs whose rows: plans for packed training batches, split over many ranks.\n\n"
    "SOURCE is a JSON, CSV or text file of document lengths or cu_seq_lens (- for standard input), or one of two "
    "workloads: stdlib (the source files of Python's standard library) and published (a published histogram of "
    "training documents).",
    help_epilogue="Try: hpfun compare published --ranks 8,32",
    version=__version__,
    result_action="return_value",
)


for place, command in enumerate((compare, plan, explain, routes, bounds, batch, recompute), start=1):
    app.command(command, sort_key=place)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; its exit status: 0 done, 2 for refused input, 1 for anything else.

    >>> main(["bounds", "published", "--ranks", "8", "--tokens", "131072", "--json"])  # doctest: +ELLIPSIS
    {"tokens": 131072, "documents": ..., "ratio": 1, "row_cost": 0, "bounds": [{"ranks": 8, ...}]}
    0
    """
    tokens = list(sys.argv[1:] if arguments is None else arguments)
    try:
        app(tokens, exit_on_error=False, error_console=stderr())
        sys.stdout.flush()
    except PlanError as error:
        _print_refusal(error, "--json" in tokens)
        return 2
    except CycloptsError:  # told already
        return 1
    except BrokenPipeError:  # whoever read our output has left, as head does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except ModuleNotFoundError as missing:
        extra = _EXTRAS.get(missing.name or "", "report")
        note(f"hpfun: {missing.name} is not installed; pip install 'hpfun[{extra}]'")
        return 1
    except (OSError, MemoryError, KeyboardInterrupt) as error:
        note(f"hpfun: {type(error).__name__}: {error}".rstrip(": "))
        return 1
    return 0


def _print_refusal(error: PlanError, as_json: bool) -> None:
    if not as_json:
        note("\n".join(violation.line() for violation in error.violations))
        return
    parts = [{**attrs.asdict(v, recurse=False), "facts": dict(v.facts)} for v in error.violations]
    print_json(error={**parts[0], "violations": parts})


if __name__ == "__main__":
    sys.exit(main())
