"""Names of modules and the patterns that users write for them.

A fully qualified name (FQN) is a module's path with dots, ``""`` for the model. A pattern matches the whole
name, case counts, and ``*`` crosses dots (``fnmatch`` rules). Whoever refuses a name that does not exist names
those that come nearest. Rule MATCH-1 and MATCH-2 of ``specs/recompute.md``.
"""

import re
from collections.abc import Container, Iterable
from difflib import SequenceMatcher
from fnmatch import translate
from heapq import nlargest

NEAREST = 3


def matches(pattern: str, names: Iterable[str]) -> tuple[str, ...]:
    """The names that the pattern matches, in their order.

    >>> matches("layers.*.mlp", ("layers.1.mlp", "layers.10.mlp.up", "Layers.1.mlp"))
    ('layers.1.mlp',)
    """
    found = re.compile(translate(pattern)).match
    return tuple(name for name in names if found(name))


def nearest(name: str, names: Iterable[str], most: int = NEAREST) -> tuple[str, ...]:
    """The names most like ``name`` by edit similarity, the most like first; the earlier one of two alike.

    >>> nearest("model.layer.0.atn", ("model.layers.0", "model.layers.0.attn", "lm_head"), most=1)
    ('model.layers.0.attn',)
    """
    matcher = SequenceMatcher(b=name, autojunk=False)

    def likeness(candidate: str) -> float:
        matcher.set_seq1(candidate)
        return matcher.ratio()

    return tuple(nlargest(most, names, key=likeness))


def parent_and_child(name: str) -> tuple[str, str]:
    """The name of the module that holds this one, and this one's name in it.

    >>> parent_and_child("model.layers.0"), parent_and_child("lm_head")
    (('model.layers', '0'), ('', 'lm_head'))
    """
    parent, _, child = name.rpartition(".")
    return parent, child


def lies_in(name: str, outer: str) -> bool:
    """Whether ``name`` is ``outer`` or a module below it.

    >>> lies_in("layers.1.mlp", "layers.1"), lies_in("layers.10", "layers.1"), lies_in("layers", "")
    (True, False, True)
    """
    return outer == "" or name == outer or name.startswith(outer + ".")


def ancestors(name: str) -> tuple[str, ...]:
    """The names of the modules above this one, the nearest first, the model's last.

    >>> ancestors("model.layers.0")
    ('model.layers', 'model', '')
    """
    parts = name.split(".") if name else []
    return tuple(".".join(parts[:count]) for count in range(len(parts) - 1, -1, -1))


def inside(name: str, outers: Container[str]) -> str | None:
    """The nearest of ``outers`` that ``name`` is or lies below; None if there is none.

    >>> inside("model.layers.0.mlp", ("model", "model.layers.0")), inside("lm_head", ("model",))
    ('model.layers.0', None)
    """
    return next((outer for outer in (name, *ancestors(name)) if outer in outers), None)
