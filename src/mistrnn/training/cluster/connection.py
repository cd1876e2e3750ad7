"""Finding a Ray cluster, or starting one that only this process can reach."""

import contextlib
import importlib.util
import logging
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from filelock import FileLock

from mistrnn.errors import UsageError

CONNECT_SECONDS = 5.0
"""How long a host may take to accept a connection."""

ANSWER_SECONDS = 15.0
"""How long an address may take to prove that a Ray cluster is there."""

PREFIX, LOCK = "mist-ray-", "lock"
LONGEST_PLACE = 30
"""Characters that the system's folder for temporary files may have, so that Ray's names below it fit."""

ON_THIS_MACHINE = {
    # Ray's setting for a single machine: all its processes listen on 127.0.0.1 alone.
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    # Connecting takes the token; without one, Ray writes its own into the home folder.
    "RAY_AUTH_MODE": "token",
    "RAY_AUTH_TOKEN": secrets.token_hex(32),
    "RAY_USAGE_STATS_ENABLED": "0",
    # A worker without a GPU of its own leaves the setting of visible GPUs alone.
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}


_started_here = False
"""Whether a cluster of our own has been started in this process, with the settings that Ray reads when it is imported."""


def make_sure_of_ray() -> None:
    """Say how to install Ray if it is missing; it is not imported yet, because it reads settings when it is."""
    if importlib.util.find_spec("ray") is None:
        raise UsageError("the engine ray needs Ray; install it with: pip install 'mistrnn[ray]'")


@contextlib.contextmanager
def connected(address: str | None, workers: int | None, cpus_per_worker: int) -> Iterator[ModuleType]:
    """Connect to the cluster at the address, or start one here; the caller's own connection is used and left as it is."""
    if address is None:
        with _cluster_here(workers, cpus_per_worker) as ray:
            yield ray
        return
    import ray

    if ray.is_initialized():
        yield ray
        return
    try:
        ray.init(address=address, logging_level=logging.ERROR, log_to_driver=False)
    except Exception as error:  # Ray raises whatever its parts raise: other versions, no token, no node here
        raise UsageError(f"cannot use the Ray cluster at {address}: {error}") from error
    try:
        yield ray
    finally:
        ray.shutdown()


@contextlib.contextmanager
def _cluster_here(workers: int | None, cpus_per_worker: int) -> Iterator[ModuleType]:
    """Start a cluster on this machine for as long as it is needed; its logs go when it goes."""
    global _started_here
    if "ray" in sys.modules and not _started_here:
        raise UsageError(
            "Ray was imported before the study could start a cluster that only this machine reaches. Import it later, or "
            'start it yourself with ray.init() and use it with address="auto".'
        )
    _started_here = True
    folder = _new_folder()
    lock = _locked(folder)
    before = {name: os.environ.get(name) for name in ON_THIS_MACHINE}
    os.environ.update(ON_THIS_MACHINE)
    try:
        import ray

        if ray.is_initialized():
            raise UsageError('Ray is connected in this process already; use that with address="auto".')
        try:
            ray.init(
                address="local",
                num_cpus=None if workers is None else workers * cpus_per_worker,
                include_dashboard=False,
                log_to_driver=False,
                logging_level=logging.ERROR,
                _temp_dir=f"{folder}/ray",  # Ray opens its own folder to everyone; the one around it stays closed
            )
        except Exception as error:  # Ray raises whatever its parts raise
            ray.shutdown()
            raise UsageError(f"cannot start a Ray cluster on this machine: {error}") from error
        try:
            yield ray
        finally:
            ray.shutdown()
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        lock.release()
        shutil.rmtree(folder, ignore_errors=True)


def _new_folder() -> str:
    """Make a folder for Ray's sockets and logs, and remove those whose processes were killed.

    Sockets take no path beyond about 100 characters, so a long place for temporary files is not used.
    """
    usual = tempfile.gettempdir()
    place = Path(usual if len(usual) <= LONGEST_PLACE or os.name == "nt" else "/tmp")
    for left in place.glob(f"{PREFIX}*/{LOCK}"):
        with contextlib.suppress(OSError):  # of another user, or still in use
            _locked(str(left.parent)).release()
            shutil.rmtree(left.parent, ignore_errors=True)
    return tempfile.mkdtemp(prefix=PREFIX, dir=place)


def _locked(folder: str) -> FileLock:
    """Hold a folder until the lock is released or this process ends; OSError if another one holds it."""
    lock = FileLock(f"{folder}/{LOCK}", timeout=0, mode=0o600, thread_local=False)
    lock.acquire()
    return lock


def make_sure_of_cluster(address: str) -> None:
    """Ask whether a Ray cluster is at the address: connecting to one that is not there takes Ray minutes to give up."""
    if "ray" in sys.modules and sys.modules["ray"].is_initialized():
        return  # the caller's own connection
    place = address.removeprefix("ray://")
    command = [sys.executable, "-m", "ray.scripts.scripts", "health-check"]
    try:
        if address != "auto":
            command += ["--address", place]
            host, _, port = place.rpartition(":")
            socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS).close()
        if place != address:
            return  # the client's port knows no health check; connecting to it gives up after half a minute
        asked = subprocess.run(command, capture_output=True, timeout=ANSWER_SECONDS, check=False)
        answers, reason = asked.returncode == 0, "the process there is no Ray cluster"
        if b"uthenticat" in asked.stderr + asked.stdout:
            reason = (
                "it asks for a token: set RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN unless ~/.ray/auth_token holds it"
            )
    except subprocess.TimeoutExpired:
        answers, reason = False, f"silence for {ANSWER_SECONDS:.0f} s"
    except (OSError, ValueError) as error:
        answers, reason = False, str(error)
    if not answers:
        raise UsageError(
            f"no Ray cluster answers at {address} ({reason}). Start one with `ray start --head`, or leave the address "
            "out for a cluster on this machine alone."
        )
