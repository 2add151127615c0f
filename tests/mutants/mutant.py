"""One mutant: a change of one place in the code that breaks one rule."""

import attrs


@attrs.frozen
class Mutant:
    """In the file ``path`` the text ``old``, which occurs once, becomes ``new``; tests of ``rule`` must fail."""

    rule: str
    path: str
    old: str
    new: str
