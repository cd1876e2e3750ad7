"""Studies on a real Ray: python -m tests.training.cluster_study WHAT FOLDER; prints what happened as JSON.

kill: two workers, one of which is killed with SIGKILL in the middle. node: two nodes, one of which is killed.
die: this process kills itself in the middle. stop: asked to stop in the middle. on: to the end.
data: two workers on data that is sent to them. address: what bad addresses and bad clusters lead to.
"""

import json
import os
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any

import torch

from mistrnn.errors import UsageError
from mistrnn.training import Interrupted, Progress, Study, run_study
from mistrnn.training.cluster import RayEngine
from tests.training.together import STUDY as ON_RECORDINGS

STUDY = Study(
    task="copy",
    layer="mist",
    hidden=8,
    trials=4,
    steps=240,
    batch_size=5,
    validate_every=40,
    task_settings={"delay": 10},
    layer_options={"delays": 3},
)
GROUP = 2
ENGINE = RayEngine(workers=2)


def processes(begin: bytes = b"ray::Worker") -> list[int]:
    """The processes of this session's cluster whose title begins so."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            own = os.getsid(int(path.parent.name)) == os.getsid(0) or _descends(int(path.parent.name))
            if own and path.read_bytes().startswith(begin):
                found.append(int(path.parent.name))
        except OSError:
            continue
    return sorted(found)


def _descends(process: int) -> bool:
    """Whether a process is a child of a child … of this one."""
    while process > 1:
        if process == os.getpid():
            return True
        fields = Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()
        process = int(fields[1])
    return False


def listeners() -> list[str]:
    """The addresses at which this process and its descendants listen."""
    sockets = set()
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if _descends(int(path.name)):
                sockets |= {os.readlink(link) for link in (path / "fd").iterdir()}
        except OSError:
            continue
    found = []
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == "0A" and f"socket:[{words[9]}]" in sockets:
                found.append(words[1].split(":")[0])
    return [_readable(address) for address in found]


def _readable(address: str) -> str:
    """Turn the kernel's hexadecimal form (words in the machine's order) into the usual one."""
    raw = b"".join(bytes.fromhex(address[k : k + 8])[::-1] for k in range(0, len(address), 8))
    return socket.inet_ntop(socket.AF_INET if len(raw) == 4 else socket.AF_INET6, raw)


def kill_one(folder: Path) -> dict[str, Any]:
    killed: list[int] = []
    said: list[str] = []
    heard: list[str] = []

    def report(progress: Progress) -> None:
        if progress.step >= 100 and not killed:
            heard.extend(listeners())
            killed.append(processes()[0])
            os.kill(killed[0], signal.SIGKILL)

    rows = run_study(
        STUDY, folder, engine=ENGINE, group_size=GROUP, report=report, say=said.append, checkpoint_seconds=0.0
    )
    return {"killed": killed, "said": said, "listeners": sorted(set(heard)), "rows": len(rows)}


def die(folder: Path) -> dict[str, Any]:
    def report(progress: Progress) -> None:
        if progress.step >= 100:
            os.kill(os.getpid(), signal.SIGKILL)

    run_study(STUDY, folder, engine=ENGINE, group_size=GROUP, report=report, checkpoint_seconds=0.0)
    return {}


def stop(folder: Path) -> dict[str, Any]:
    steps: list[int] = []
    try:
        run_study(
            STUDY,
            folder,
            engine=ENGINE,
            group_size=GROUP,
            report=lambda progress: steps.append(progress.step),
            stop=lambda: bool(steps) and steps[-1] >= 100,
        )
    except Interrupted:
        return {"stopped": steps[-1]}
    return {}


def go_on(folder: Path) -> dict[str, Any]:
    said: list[str] = []
    rows = run_study(STUDY, folder, engine=ENGINE, group_size=GROUP, say=said.append)
    return {"said": said, "rows": len(rows)}


def on_sent_data(folder: Path) -> dict[str, Any]:
    """The same study on data that is sent, and on data that every node has."""
    sent = run_study(ON_RECORDINGS, folder / "sent", data=folder / "data", engine=ENGINE, group_size=1)
    engine = RayEngine(workers=2, node_data=True)
    run_study(ON_RECORDINGS, folder / "there", data=folder / "data", engine=engine, group_size=1)
    return {"rows": len(sent)}


def node_dies(folder: Path) -> dict[str, Any]:
    """On a cluster of two nodes that somebody else has started, one of which breaks down."""
    from mistrnn.training.cluster.connection import ON_THIS_MACHINE

    os.environ.update(ON_THIS_MACHINE)
    os.environ["RAY_health_check_period_ms"] = "500"  # noqa: SIM112 (Ray's own spelling)
    os.environ["RAY_health_check_failure_threshold"] = "3"  # noqa: SIM112
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    node = cluster.add_node(num_cpus=1)
    cluster.wait_for_nodes()
    lost: list[float] = []
    said: list[str] = []

    def report(progress: Progress) -> None:
        if progress.step >= 100 and not lost:
            lost.append(time.monotonic())
            cluster.remove_node(node, allow_graceful=False)

    engine = RayEngine(address=cluster.address)
    rows = run_study(
        STUDY, folder, engine=engine, group_size=GROUP, report=report, say=said.append, checkpoint_seconds=0.0
    )
    cluster.shutdown()
    return {"said": said, "rows": len(rows)}


def bad_addresses(folder: Path) -> dict[str, Any]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        closed = free.getsockname()[1]
    silent = socket.create_server(("127.0.0.1", 0))  # accepts, and never answers
    found: dict[str, Any] = {}
    for name, address in {
        "closed": f"127.0.0.1:{closed}",
        "silent": f"127.0.0.1:{silent.getsockname()[1]}",
        "client": f"ray://127.0.0.1:{closed}",
        "auto": "auto",
        "nonsense": "nonsense",
    }.items():
        started = time.monotonic()
        try:
            run_study(STUDY, folder / name, engine=RayEngine(address=address))
        except UsageError as error:
            found[name] = [str(error), time.monotonic() - started]
    return found


def bad_clusters(folder: Path) -> dict[str, Any]:
    """One running cluster, and what is wrong with it each time."""
    from mistrnn.training.cluster import pool
    from mistrnn.training.cluster.connection import ON_THIS_MACHINE

    os.environ.update(ON_THIS_MACHINE)
    import ray

    from mistrnn.training import study_task

    ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=100 * 2**20)
    found: dict[str, Any] = {}

    def attempt(name: str, study: Study = STUDY, **options: Any) -> None:
        device = options.pop("device", "auto")
        data, task = options.pop("data", None), options.pop("task", None)
        try:
            run_study(study, folder / name, engine=RayEngine("auto", **options), device=device, data=data, task=task)
        except UsageError as error:
            found[name] = str(error)

    attempt("gpus", device="cuda")
    attempt("cpus", cpus_per_worker=3)
    attempt("workers", workers=3)
    task = study_task(ON_RECORDINGS, folder / "data")
    attempt("no data", ON_RECORDINGS, task=task, data=folder / "elsewhere", node_data=True, workers=1)
    large = study_task(ON_RECORDINGS, folder / "data")
    large.ballast = torch.zeros(30 * 2**20)
    attempt("large", ON_RECORDINGS, task=large, data=folder / "data")
    here = pool.versions
    pool.versions = lambda: {**here(), "torch": "1.0"}
    attempt("versions", workers=1)
    pool.versions = here
    run_study(STUDY, folder / "well", engine=RayEngine("auto"))
    found["still connected"] = ray.is_initialized()
    ray.shutdown()
    # A node where another mistrnn is installed, or none that works.
    broken = folder / "broken" / "mistrnn"
    broken.mkdir(parents=True)
    (broken / "__init__.py").write_text("raise ImportError('no mistrnn on this node')\n")
    environment = {"env_vars": {"PYTHONPATH": str(broken.parent)}}
    ray.init("local", num_cpus=1, include_dashboard=False, log_to_driver=False, runtime_env=environment)
    attempt("missing", workers=1)
    ray.shutdown()
    return found


def main(what: str, folder: Path) -> None:
    torch.set_num_threads(1)
    ways = {
        "kill": kill_one,
        "die": die,
        "stop": stop,
        "on": go_on,
        "data": on_sent_data,
        "node": node_dies,
        "address": bad_addresses,
        "clusters": bad_clusters,
    }
    print(json.dumps(ways[what](folder)))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
