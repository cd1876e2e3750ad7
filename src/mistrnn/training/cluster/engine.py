"""The Ray engine: its settings, and the capacity of the cluster."""

from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from mistrnn.errors import UsageError
from mistrnn.tasks import TASKS, Task
from mistrnn.training.cluster.connection import connected, make_sure_of_cluster, make_sure_of_ray
from mistrnn.training.cluster.pool import WorkerPool
from mistrnn.training.cluster.shipping import Packed, packed
from mistrnn.training.cluster.worker import Worker, WorkerSettings
from mistrnn.training.ledger import Ledger
from mistrnn.training.trainer import Data

STORE_SHARE = 0.9
"""Largest share of a node's object store for the data."""


@dataclass(frozen=True)
class RayEngine:
    """A Ray cluster: one that is running at `address`, or a new one on this machine alone, for this study alone.

    Attributes:
        address: "auto", "host:port" or "ray://host:port"; a new cluster on this machine if left out.
        workers: how many groups train at once; as many as the cluster has GPUs, or else CPUs for, if left out.
        cpus_per_worker: how many CPUs, and threads, a worker has.
        node_data: every node finds the data at the same path; otherwise it is sent to each node once.
    """

    address: str | None = None
    workers: int | None = None
    cpus_per_worker: int = 1
    node_data: bool = False

    def check(self, device: str) -> None:
        """Refuse invalid settings before anything is read or written."""
        for name in ("workers", "cpus_per_worker"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UsageError(f"expected {name} >= 1, got {value}.")
        if device not in ("auto", "cpu", "cuda"):
            raise UsageError(
                f"expected device auto, cpu or cuda on a cluster, because Ray chooses among its GPUs, got {device!r}."
            )
        make_sure_of_ray()
        if self.address is not None:
            make_sure_of_cluster(self.address)

    def run(self, ledger: Ledger, task: Data, *, device: str, data: Path | None, group_size: int | None) -> None:
        """Train all that waits in the ledger on the cluster's workers."""
        if not ledger.waiting:
            return
        with connected(self.address, self.workers, self.cpus_per_worker) as ray:
            kind, capacity = self._capacity(ray, device)
            workers = min(self.workers or sum(capacity), ledger.waiting)
            size = group_size or -(-ledger.waiting // workers)
            ledger.watch.say(
                f"{ledger.waiting} trials in groups of at most {size} on {workers} "
                f"{'GPU' if kind == 'cuda' else 'CPU'} worker{'s' * (workers > 1)}"
            )
            settings = WorkerSettings(
                study=ledger.study.as_dict(),
                data=str(Path(data).absolute()) if data is not None else None,
                data_identity=task.data_identity,
                device=kind,
                threads=self.cpus_per_worker,
                neighbours=1 if kind == "cuda" else min(workers, max(capacity)),
                own_task=_own_task(task),
            )
            there_already = self.node_data or not type(task).needs_data
            packed_task = None if there_already else ray.put(self._sendable(ray, task))
            WorkerPool(ray, ledger, self._worker_class(ray, kind), settings, packed_task, size, group_size).run(workers)

    def _capacity(self, ray: ModuleType, device: str) -> tuple[str, list[int]]:
        """Return the kind of device, and the number of workers that fit on each node."""
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        gpus = int(sum(node.get("GPU", 0) for node in nodes))
        if device == "cuda" and not gpus:
            raise UsageError("expected GPUs in the cluster for device cuda, and Ray knows of none.")
        kind = "cuda" if gpus and device != "cpu" else "cpu"
        capacity = [int(node.get("CPU", 0)) // self.cpus_per_worker for node in nodes]
        if kind == "cuda":
            capacity = [min(room, int(node.get("GPU", 0))) for room, node in zip(capacity, nodes, strict=True)]
        if not any(capacity):
            raise UsageError(
                f"expected a node with {self.cpus_per_worker} CPUs{' and a GPU' if kind == 'cuda' else ''} for a worker, got "
                + ", ".join(f"{int(node.get('CPU', 0))} CPUs and {int(node.get('GPU', 0))} GPUs" for node in nodes)
            )
        if self.workers is not None and self.workers > sum(capacity):
            raise UsageError(f"expected at most {sum(capacity)} workers in this cluster, got {self.workers}.")
        return kind, capacity

    def _worker_class(self, ray: ModuleType, kind: str) -> Any:
        options: dict[str, Any] = {"num_cpus": self.cpus_per_worker, "scheduling_strategy": "SPREAD"}
        if kind == "cuda":
            options["num_gpus"] = 1
        return ray.remote(**options)(Worker)

    def _sendable(self, ray: ModuleType, task: Data) -> Packed:
        packed_task = packed(task, ray.cloudpickle.CloudPickler)
        size = sum(array.nbytes for array in packed_task[1])
        room = min(node["Resources"].get("object_store_memory", 0) for node in ray.nodes() if node["Alive"])
        if size > STORE_SHARE * room:
            raise UsageError(
                f"the data ({size / 2**30:.2f} GiB) does not fit into the memory that Ray shares on a node "
                f"({room / 2**30:.2f} GiB). Put it where every node finds it under the same path, and say --node-data."
            )
        return packed_task


def _own_task(task: Data) -> type[Task] | None:
    """Return the class of a task that `register_task` has made known in this process alone."""
    kind = type(task)
    if issubclass(kind, Task) and TASKS.get(kind.name) is kind and kind.__module__.partition(".")[0] != "mistrnn":
        return kind
    return None
