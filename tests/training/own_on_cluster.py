"""A search and a study of a registered task on a real Ray of this machine: python -m tests.training.own_on_cluster FOLDER."""

import os
import sys
from pathlib import Path

import torch

from mistrnn.tasks import Recordings, register_task
from mistrnn.training import RayEngine, Study, run_study
from mistrnn.training.cluster.connection import ON_THIS_MACHINE
from tests.tasks.own_recordings import labels_of_steps, recordings
from tests.training.small_search import run


@register_task
class Own(Recordings):
    """A task of this script, which no worker can import."""

    name, summary = "own", "recordings of a script"
    settings, default_steps, validation_interval = {}, 4, 2

    def __init__(self, seed: int = 0) -> None:
        x, _, groups = recordings()
        super().__init__(x, labels_of_steps(x), groups, seed=seed)


STUDY = Study(task="own", layer="rnn", hidden=4, trials=2, batch_size=5)


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    os.environ.update(ON_THIS_MACHINE)
    import ray

    ray.init("local", num_cpus=1, include_dashboard=False, log_to_driver=False, object_store_memory=100 * 2**20)
    engine = RayEngine("auto")
    run(folder / "search", engine=engine)
    run_study(STUDY, folder / "sent", engine=engine, task=Own())
    Own.needs_data = False  # then each worker makes its own
    run_study(STUDY, folder / "made", engine=engine, task=Own())
    run_study(STUDY, folder / "alone", device="cpu", task=Own())
    ray.shutdown()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
