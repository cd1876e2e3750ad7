"""The arguments of a constructor that hands on `**options`, as those see it who make an object anew."""

import inspect


def shown_signature(kind: type, above: type) -> inspect.Signature | None:
    """Return the arguments that a constructor names and, in place of `**options`, those of the class above.

    None if it hands on nothing, and Python finds them by itself.
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
    except ValueError:  # an argument without a default after one with: Python has no way to write it
        return None
