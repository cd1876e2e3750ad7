"""Flags that several commands share, as dataclasses: a command takes a group of flags as one argument."""

import inspect
from collections.abc import Callable
from dataclasses import MISSING, fields, is_dataclass
from functools import wraps
from typing import Any, get_type_hints


def with_flags(command: Callable[..., None]) -> Callable[..., None]:
    """Show typer the fields of all dataclasses that a command takes as parameters of the command.

    A field without a default has that of its `typer.Option`, or is required.
    """
    groups: dict[str, Any] = {name: kind for name, kind in get_type_hints(command).items() if is_dataclass(kind)}
    parameters = []
    for kind in groups.values():
        hints = get_type_hints(kind, include_extras=True)
        for field in fields(kind):
            default = inspect.Parameter.empty if field.default is MISSING else field.default
            parameters.append(
                inspect.Parameter(
                    field.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hints[field.name]
                )
            )

    @wraps(command)
    def run(**given: Any) -> None:
        command(**{name: kind(**{one.name: given[one.name] for one in fields(kind)}) for name, kind in groups.items()})

    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {one.name: one.annotation for one in parameters}
    return run
