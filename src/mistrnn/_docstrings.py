"""Docstrings of classes that inherit arguments: `help` of such a class explains all of them."""

import inspect
import re
from typing import TypeVar

Kind = TypeVar("Kind", bound=type)

_SECTION = re.compile(r"^Args:\n((?:[ \t]+\S.*\n?|\n(?=[ \t]))+)", re.MULTILINE)
"""The section of a docstring that names arguments, indented by four spaces."""


def inherits_arguments(kind: Kind) -> Kind:
    """Add the arguments of the base classes to the docstring of a class, in the order of its signature.

    Use it as a decorator, above `dataclass`. The class documents its own arguments under `Args:`, or has no such section.

    >>> class Base:
    ...     '''A base.
    ...
    ...     Args:
    ...         size: the number of units.
    ...     '''
    ...
    >>> @inherits_arguments
    ... class Own(Base):
    ...     '''A class of its own.
    ...
    ...     It does more.
    ...     '''
    ...
    ...     def __init__(self, size, rate): ...
    >>> print(Own.__doc__)
    A class of its own.
    <BLANKLINE>
    Args:
        size: the number of units.
    <BLANKLINE>
    It does more.
    """
    if kind.__doc__ is None:  # python -OO
        return kind
    doc = inspect.cleandoc(kind.__doc__)
    told: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        told |= arguments_of(base)
    lines = [told[name] for name in inspect.signature(kind).parameters if name in told]
    section = "Args:\n" + "\n".join(lines) + "\n"
    if _SECTION.search(doc):
        kind.__doc__ = _SECTION.sub(lambda _: section, doc + "\n", count=1).rstrip()
    else:
        summary, _, rest = doc.partition("\n\n")
        kind.__doc__ = f"{summary}\n\n{section}" + (f"\n{rest}" if rest else "")
    kind.__doc__ = kind.__doc__.rstrip()
    return kind


def arguments_of(kind: type) -> dict[str, str]:
    r"""Return the lines about each argument in a class's own docstring.

    >>> class Some:
    ...     '''Something.
    ...
    ...     Args:
    ...         size: the number of units,
    ...             at least 1.
    ...         rate: of learning.
    ...     '''
    >>> arguments_of(Some)
    {'size': '    size: the number of units,\n        at least 1.', 'rate': '    rate: of learning.'}
    """
    found = _SECTION.search(inspect.cleandoc(vars(kind).get("__doc__") or "") + "\n")
    if found is None:
        return {}
    texts = re.split(r"^(?=    \w)", found[1], flags=re.MULTILINE)[1:]
    return {text.partition(":")[0].strip(): text.rstrip() for text in texts}
