"""Files that are written whole or not at all, and folders on this machine or at an address that fsspec knows."""

import contextlib
import errno
import json
import os
import platform
import tempfile
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from mistrnn.errors import UsageError

LOCK = "lock"
LOCK_OWNER = "lock-owner"
"""Names the process that holds the lock of a local folder: on Windows a locked file cannot be read."""
LOCK_REFRESHED_AFTER = 20.0
"""Seconds after which a write to an address says again that the folder is in use."""
LOCK_FORGOTTEN_AFTER = 120.0
"""Seconds without such a word after which the lock of an address is taken over."""

PUT_WHOLE = {"abfs", "abfss", "az", "gcs", "gs", "memory", "oci", "oss", "s3", "s3a", "tos"}
"""Protocols of object stores: an object appears there whole or not at all, and nothing can be moved."""


def write_whole(path: Path, content: bytes, *, suffix: str = ".part") -> None:
    """Write a file, the whole of it or nothing: beside the old one, onto the disk, then into its place in one move.

    Args:
        path: the file; its folder must be there.
        content: what it is to hold.
        suffix: what the file beside is called after; one with the process's number where two processes may write at once.

    Raises:
        OSError: if it cannot be written; the old file is as it was, and nothing is left beside it.
    """
    temporary = path.parent / f"{path.name}{suffix}"
    try:
        with open(temporary, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


@contextlib.contextmanager
def written_together(folder: Path) -> Iterator[Path]:
    """Give a folder to write files into, which go to `folder` when all of them are there; after an error none of them does.

    What the error says of the place in between, it says of `folder`.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".new-", dir=folder) as place:
            try:
                yield Path(place)
            except UsageError as error:
                raise UsageError(str(error).replace(place, str(folder))) from error
            for path in sorted(Path(place).iterdir()):
                os.replace(path, folder / path.name)
    except OSError as error:
        raise UsageError(f"cannot write to the folder {folder}: {error.strerror}.") from error


class Folder(ABC):
    """A folder of files that are written whole; names are relative to it, such as `models/trial-000.safetensors`.

    Whatever goes wrong on the way to the files is an OSError with a `strerror`, in both forms.
    """

    place: Path | str
    """Where it is, as messages name it: a path on this machine, or an address."""

    @abstractmethod
    def at(self, name: str) -> str:
        """Return where a file is, as messages name it."""

    @abstractmethod
    def read(self, name: str) -> bytes:
        """Return what a file holds; FileNotFoundError if there is none."""

    @abstractmethod
    def exists(self, name: str) -> bool:
        """Return whether there is a file of that name."""

    @abstractmethod
    def names(self, inside: str = "") -> list[str]:
        """Return the sorted names of what is in the folder, or in one inside it; nothing if it is not there."""

    @abstractmethod
    def folders_with(self, name: str) -> list[Path | str]:
        """Return where folders are that hold a file of that name, sorted: this one and those below it at any depth."""

    @abstractmethod
    def make(self, inside: str = "") -> None:
        """Make the folder, or one inside it, with those above it."""

    @abstractmethod
    def write(self, name: str, content: bytes) -> None:
        """Write a file, the whole of it or nothing."""

    @abstractmethod
    def remove(self, name: str) -> None:
        """Remove a file, if it is there."""

    @abstractmethod
    def lock(self) -> None:
        """Take the folder for this process, or raise a UsageError that names the one that has it."""

    @abstractmethod
    def unlock(self) -> None:
        """Let go of the folder, if it was taken."""

    def _in_use(self, owner: str, hint: str = "") -> UsageError:
        return UsageError(
            f"{self.place} is in use by another process ({owner}); wait for it or use another folder.{hint}"
        )


def folder_at(place: Path | str) -> Folder:
    """Return the folder at a path, or at an address such as s3://bucket/study; it need not be there yet.

    >>> folder_at("studies/first").at("study.json")
    'studies/first/study.json'
    >>> folder_at("memory://studies/first").at("study.json")
    'memory://studies/first/study.json'
    """
    if isinstance(place, Path) or "://" not in place:
        return LocalFolder(Path(place))
    # Loaded here, because it takes a moment that most people's folders need not wait for.
    from fsspec.core import url_to_fs
    from fsspec.implementations.local import LocalFileSystem

    try:
        system, root = url_to_fs(place)
    except ImportError as error:
        raise UsageError(f"{place}: this kind of address needs another package: {error}.") from error
    except ValueError as error:
        raise UsageError(f"{place}: expected a folder or an address that fsspec knows: {error}.") from error
    return LocalFolder(Path(root)) if isinstance(system, LocalFileSystem) else RemoteFolder(place, system, root)


class LocalFolder(Folder):
    """A folder on this machine."""

    def __init__(self, place: Path) -> None:
        self.place: Path = place
        self._lock = FileLock(place / LOCK, timeout=0, thread_local=False)

    def at(self, name: str) -> str:
        """Return a file's path."""
        return str(self.place / name)

    def read(self, name: str) -> bytes:
        """Return what a file holds."""
        return (self.place / name).read_bytes()

    def exists(self, name: str) -> bool:
        """Return whether there is a file of that name."""
        return (self.place / name).exists()

    def names(self, inside: str = "") -> list[str]:
        """Return the sorted names of what is there."""
        try:
            return sorted(os.listdir(self.place / inside))
        except FileNotFoundError:
            return []

    def folders_with(self, name: str) -> list[Path | str]:
        """Return the paths of folders that hold a file of that name, links followed once."""
        if not self.place.is_dir():
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        found, entered = [], set()
        for place, folders, files in os.walk(self.place, followlinks=True):
            real = os.path.realpath(place)
            if real in entered:
                folders.clear()
                continue
            entered.add(real)
            if name in files:
                found.append(Path(place))
        return [*sorted(found)]

    def make(self, inside: str = "") -> None:
        """Make the folder, or one inside it."""
        (self.place / inside).mkdir(parents=True, exist_ok=True)

    def write(self, name: str, content: bytes) -> None:
        """Write a file, the whole of it or nothing."""
        write_whole(self.place / name, content)

    def remove(self, name: str) -> None:
        """Remove a file, if it is there."""
        (self.place / name).unlink(missing_ok=True)

    def lock(self) -> None:
        """Take the folder; the system lets go of it when the process ends, however it ends."""
        try:
            self._lock.acquire()
        except Timeout:
            owner = self.read(LOCK_OWNER).decode() if self.exists(LOCK_OWNER) else "which has just begun"
            raise self._in_use(owner) from None
        self.write(LOCK_OWNER, f"process {os.getpid()}".encode())

    def unlock(self) -> None:
        """Let go of the folder, if it was taken."""
        if self._lock.is_locked:
            with contextlib.suppress(OSError):  # the name of the owner is only part of a message
                self.remove(LOCK_OWNER)
            self._lock.release()


class RemoteFolder(Folder):
    """A folder at an address, through a file system of fsspec.

    Writing: object stores put an object whole or not at all; elsewhere a file is written beside and then moved, which is one
    step where the file system moves in one step (SFTP, HDFS) and a copy where it does not.

    The lock is an object that names process, host and time. Writes refresh it when it is older than 20 s, and one that nobody
    has refreshed for 120 s counts as left behind by a process that died, and is taken over. So it keeps a second command from
    a folder in which another works, as long as their clocks agree to a minute and the first writes at least every two minutes,
    as a study does that saves its running group every minute. It cannot do what a lock on a disk does: two commands that
    start within the same second may both find the folder free, and one that slept for longer than 120 s may find that
    it has been taken over. Whoever no longer finds its own lock at the next refresh stops there, before it writes; until
    then, for 20 s, both may write.

    Args:
        place: the address, as messages name it.
        system: fsspec's file system.
        root: the folder's path in it.
    """

    def __init__(self, place: str, system: Any, root: str) -> None:
        self.place: str = place if place.endswith("://") else place.rstrip("/")
        self._system = system
        self._root = root.rstrip("/")
        protocols = [system.protocol] if isinstance(system.protocol, str) else system.protocol
        self._puts_whole = not PUT_WHOLE.isdisjoint(protocols)
        self._lock_owner: dict[str, Any] | None = None
        self._lock_refreshed = 0.0

    def at(self, name: str) -> str:
        """Return a file's address."""
        return f"{self.place}/{name}"

    def read(self, name: str) -> bytes:
        """Return what a file holds."""
        with _failures_as_os_errors():
            content: bytes = self._system.cat_file(self._path(name))
        return content

    def exists(self, name: str) -> bool:
        """Return whether there is a file of that name."""
        # Not fsspec's own `exists`, for which a broken connection, too, means that nothing is there.
        try:
            with self._looking():
                self._system.info(self._path(name))
        except FileNotFoundError:
            return False
        return True

    def names(self, inside: str = "") -> list[str]:
        """Return the sorted names of what is there."""
        folder = self._path(inside)
        try:
            with self._looking():
                found = [path.rstrip("/") for path in self._system.ls(folder, detail=False)]
        except FileNotFoundError:
            return []
        return sorted(path.rsplit("/", 1)[-1] for path in found if path != folder)  # some list the folder itself

    def folders_with(self, name: str) -> list[Path | str]:
        """Return the addresses of folders that hold a file of that name."""
        with self._looking():
            found = [path.removeprefix(self._root) for path in self._system.find(self._root)]
        return [*sorted(self.place + path.removesuffix(f"/{name}") for path in found if path.endswith(f"/{name}"))]

    def make(self, inside: str = "") -> None:
        """Make the folder, or one inside it; in an object store there is nothing to make."""
        if not self._puts_whole:
            with _failures_as_os_errors():
                self._system.makedirs(self._path(inside), exist_ok=True)

    def write(self, name: str, content: bytes) -> None:
        """Write a file, the whole of it or nothing."""
        self._keep_lock()
        self._put(name, content)

    def remove(self, name: str) -> None:
        """Remove a file, if it is there."""
        self._keep_lock()
        with contextlib.suppress(FileNotFoundError), _failures_as_os_errors():
            self._system.rm_file(self._path(name))

    def lock(self) -> None:
        """Take the folder, unless another process has said within 120 s that it works there."""
        found = self._found_lock()
        age = time.time() - found["time"] if found else LOCK_FORGOTTEN_AFTER
        if found and age < LOCK_FORGOTTEN_AFTER:
            raise self._in_use(
                f"process {found['process']} on {found['host']}, {max(age, 0):.0f} s ago",
                f" A process that was killed holds it for {LOCK_FORGOTTEN_AFTER:.0f} s.",
            )
        self._lock_owner = {"process": os.getpid(), "host": platform.node(), "id": uuid.uuid4().hex}
        self._refresh_lock()

    def unlock(self) -> None:
        """Let go of the folder, if it was taken and is still ours."""
        with contextlib.suppress(OSError):  # whoever comes next waits 120 s instead
            if self._holds_lock():
                with _failures_as_os_errors():
                    self._system.rm_file(self._path(LOCK))
        self._lock_owner = None

    def _keep_lock(self) -> None:
        """Say from time to time that the folder is in use, and stop if somebody else says so."""
        if self._lock_owner is None or time.monotonic() - self._lock_refreshed < LOCK_REFRESHED_AFTER:
            return
        if not self._holds_lock():
            raise UsageError(
                f"{self.place} has been taken over by another process, because this one began at the same time or was silent "
                f"for {LOCK_FORGOTTEN_AFTER:.0f} s. What was written before is intact; the same command resumes from there."
            )
        self._refresh_lock()

    def _refresh_lock(self) -> None:
        self._put(LOCK, json.dumps({**(self._lock_owner or {}), "time": round(time.time(), 3)}).encode())
        self._lock_refreshed = time.monotonic()

    def _holds_lock(self) -> bool:
        found = self._found_lock()
        return found is not None and self._lock_owner is not None and found["id"] == self._lock_owner["id"]

    def _found_lock(self) -> dict[str, Any] | None:
        """Return what the lock says, if there is one that says it."""
        try:
            found = json.loads(self.read(LOCK))
            return {**{key: found[key] for key in ("process", "host", "id")}, "time": float(found["time"])}
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return None

    def _put(self, name: str, content: bytes) -> None:
        path = self._path(name)
        with _failures_as_os_errors():
            if self._puts_whole:
                self._system.pipe_file(path, content)
                return
            try:
                self._system.pipe_file(f"{path}.part", content)
                self._system.mv(f"{path}.part", path)
            except BaseException:
                with contextlib.suppress(Exception):
                    self._system.rm_file(f"{path}.part")
                raise

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}" if name else self._root

    @contextlib.contextmanager
    def _looking(self) -> Iterator[None]:
        """Look at what is there now, not at a list that fsspec has kept."""
        with _failures_as_os_errors():
            self._system.invalidate_cache()
            yield


@contextlib.contextmanager
def _failures_as_os_errors() -> Iterator[None]:
    """Give every failure of a file system the form of those on a disk: each of fsspec's has errors of its own."""
    try:
        yield
    except FileNotFoundError as error:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT)) from error
    except Exception as error:
        if isinstance(error, OSError) and error.strerror:
            raise
        reason = str(error).strip() or type(error).__name__
        raise OSError(errno.EIO, reason) from error
