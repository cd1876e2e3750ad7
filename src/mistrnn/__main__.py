"""The `mist` command, also as `python -m mistrnn`."""

import sys

from mistrnn._memory import keep_freed_memory


def main() -> None:
    """Run the command, or say what to install if its packages are missing."""
    keep_freed_memory()
    try:
        from mistrnn.cli import run
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("mistrnn"):
            raise
        sys.exit(f"mist: the command needs {error.name}, which is not installed: pip install 'mistrnn[experiments]'")
    except KeyboardInterrupt:  # nothing has begun yet
        sys.exit(130)
    run()


if __name__ == "__main__":
    main()
