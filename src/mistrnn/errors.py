"""Errors that are the caller's to mend: the command prints them as one message, without a traceback."""


class UsageError(ValueError):
    """Something that was asked for cannot be: a wrong setting, missing or broken data, a folder that cannot be used."""
