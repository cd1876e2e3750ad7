"""The signature of a constructor with `**options`, for introspection."""

import inspect


def constructor_signature(kind: type, above: type) -> inspect.Signature | None:
    """Return the named arguments of a constructor and, instead of `**options`, those of the base class.

    None if there are no `**options`, where `inspect.signature` is right.
    """
    own = list(inspect.signature(vars(kind)["__init__"]).parameters.values())[1:]
    named = [argument for argument in own if argument.kind not in (argument.VAR_POSITIONAL, argument.VAR_KEYWORD)]
    if not any(argument.kind is argument.VAR_KEYWORD for argument in own):
        return None
    by_position = any(argument.kind is argument.VAR_POSITIONAL for argument in own)
    names = {argument.name for argument in named}
    for argument in inspect.signature(above).parameters.values():
        if argument.name not in names:
            named.append(argument if by_position else argument.replace(kind=argument.KEYWORD_ONLY))
    try:
        return inspect.Signature(sorted(named, key=lambda argument: argument.kind))
    except ValueError:  # an argument without a default after one with a default
        return None
