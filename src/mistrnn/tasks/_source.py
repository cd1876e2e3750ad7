"""The source of a data set: a folder or a zip archive, read in place without unpacking."""

import math
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

from mistrnn.errors import UsageError


class Source:
    """The files of a folder or an archive, by their paths in it."""

    def __init__(self, place: Path, archive: zipfile.ZipFile | None) -> None:
        self.place, self._archive = place, archive
        if archive is None:
            names = [path.relative_to(place).as_posix() for path in place.rglob("*") if path.is_file()]
        else:
            names = [info.filename for info in archive.infolist() if not info.is_dir()]
            outside = [name for name in names if name.startswith("/") or ".." in PurePosixPath(name).parts]
            if outside:
                raise UsageError(f"{place}: an archive with files outside its folder ({outside[0]}) is not read.")
        self.names = sorted(names)

    def read(self, name: str) -> bytes:
        """Return the whole of a file."""
        try:
            return (self.place / name).read_bytes() if self._archive is None else self._archive.read(name)
        except KeyError as error:
            raise UsageError(f"{self.where(name)}: No such file in the archive.") from error
        except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
            raise UsageError(f"{self.where(name)}: cannot be read from the archive ({error}).") from error
        except OSError as error:
            raise UsageError(f"{self.where(name)}: {error.strerror}.") from error

    def stamp(self, *names: str) -> str:
        """Return a stamp that changes with the files, without reading them."""
        if self._archive is not None:
            return " ".join(f"{self._archive.getinfo(name).CRC:x}" for name in names)
        found = [(self.place / name).stat() for name in names]
        return " ".join(f"{stat.st_size}-{stat.st_mtime_ns}" for stat in found)

    def text(self, name: str) -> str:
        """Return a text file, without the mark that some programs put in front."""
        try:
            return self.read(name).decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise UsageError(f"{self.where(name)}: expected text, got other bytes ({error}).") from error

    def where(self, name: str) -> str:
        """Return how to name a file in a message."""
        return f"{self.place}/{name}" if self._archive is None else f"{self.place}: {name}"


def finite_numbers(words: Sequence[str], count: int, where: str) -> list[float]:
    """Return the numbers of a line that should have so many of them; `where` is how to name it in a message."""
    try:
        found = [float(word) for word in words]
    except ValueError:
        found = []
    if len(found) != count or not all(map(math.isfinite, found)):
        raise UsageError(f"{where}: expected {count} finite numbers, got {' '.join(words)[:60]!r}.")
    return found


@contextmanager
def opened(place: Path) -> Iterator[Source]:
    """Open a folder or a zip archive."""
    if place.is_dir():
        yield Source(place, None)
    elif place.is_file():
        try:
            with zipfile.ZipFile(place) as archive:
                yield Source(place, archive)
        except zipfile.BadZipFile as error:
            raise UsageError(f"{place}: truncated, or no zip archive ({error}).") from error
    else:
        raise UsageError(f"{place}: there is no such folder or archive.")
