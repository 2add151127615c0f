"""Mutation tests: every rule of the specification has a change of the code that its marked tests notice.

``python -m tests.mutants`` applies each mutant to a copy of the tree and runs the tests marked with its rule.
As a pytest plugin (``-p tests.mutants``) this module makes sure that the copy is what is tested, and registers
the Hypothesis profile of these runs.
"""

import os
from pathlib import Path

from hypothesis import HealthCheck, Phase, settings

PROFILE = "mutants"
settings.register_profile(
    PROFILE,
    max_examples=60,
    deadline=None,
    database=None,
    derandomize=True,  # the same examples every time, so a kill is a kill
    phases=[Phase.explicit, Phase.generate],  # nobody reads the example, so nothing is shrunk
    suppress_health_check=[HealthCheck.too_slow],
)

TREE = "HPFUN_MUTANT_TREE"


def pytest_configure():
    """Stop the run unless the package comes from the copy that ``HPFUN_MUTANT_TREE`` names."""
    tree = os.environ.get(TREE)
    if tree:
        import hpfun

        found = Path(hpfun.__file__).resolve()
        assert found.is_relative_to(Path(tree).resolve()), f"tests import {found}, not the copy in {tree}"


def pytest_collection_modifyitems(items):
    """Plain tests first: the run ends at the first failure, and they are the fast ones."""
    if os.environ.get(TREE):
        items.sort(key=lambda item: hasattr(getattr(item, "function", None), "hypothesis"))
