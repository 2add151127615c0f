"""Numbers and names as people read them, for explanations, errors and tables."""

from collections.abc import Sequence
from typing import Any

NAMES_SHOWN = 6


def counted(number: Any, noun: str) -> str:
    """A number with its noun.

    >>> counted(1, "row"), counted(0, "row")
    ('1 row', '0 rows')
    """
    return f"{number} {noun}{'' if number == 1 else 's'}"


def listed(values: Sequence[object], most: int = NAMES_SHOWN) -> str:
    """Names or numbers in a line, the first few of many.

    >>> listed(("a", "b", "c"), most=2)
    'a, b and 1 more'
    """
    more = f" and {len(values) - most} more" if len(values) > most else ""
    return ", ".join(map(str, values[:most])) + more


def in_bytes(number: int) -> str:
    """Bytes with binary units, three significant digits.

    >>> in_bytes(1023), in_bytes(1536), in_bytes(40 * 2**30)
    ('1023 B', '1.50 KiB', '40.0 GiB')
    """
    scaled, unit = float(number), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB", "PiB"):
        if scaled < 1024 or unit == "PiB":
            break
        scaled /= 1024
    if unit == "B":
        return f"{number} B"
    return f"{scaled:.{2 if scaled < 9.995 else 1 if scaled < 99.95 else 0}f} {unit}"
