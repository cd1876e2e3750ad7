"""A small study that kills itself: python -m tests.training.killed_study FOLDER STEP|WRITE NUMBER.

STEP n: SIGKILL after n optimisation steps of this process. WRITE n: SIGKILL inside its n-th write, when the new file is
half on the disk. NEVER 0: run to the end.
"""

import os
import signal
import sys
from pathlib import Path

from mistrnn.training import Progress, Study, run_study

STUDY = Study(
    task="copy",
    layer="mist",
    hidden=6,
    trials=4,
    steps=12,
    batch_size=5,
    validate_every=4,
    task_settings={"delay": 10},
    layer_options={"delays": 3},
)

if os.environ.get("MISTRNN_TEST_STUDY") == "hard":
    # Longer, with Adam, truncation, gradient norms and a trial that is lost on the way.
    STUDY = Study(**{**STUDY.as_dict(), "steps": 60, "optimizer": "adam", "truncate": 5, "gradients_every": 7})
    drawn = Study.learning_rate_of
    Study.learning_rate_of = lambda self, trial: 1e38 if trial == 1 else drawn(self, trial)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def main(folder: str, when: str, number: int) -> None:
    steps = writes = 0

    def after_step(_: Progress) -> None:
        nonlocal steps
        steps += 1
        if when == "STEP" and steps == number:
            die()

    sync = os.fsync

    def dying_sync(descriptor: int) -> None:
        nonlocal writes
        writes += 1
        if when == "WRITE" and writes == number:
            os.ftruncate(descriptor, os.fstat(descriptor).st_size // 2)
            die()
        sync(descriptor)

    os.fsync = dying_sync
    # Two groups, and a checkpoint after every step.
    run_study(STUDY, Path(folder), device="cpu", group_size=3, checkpoint_seconds=0.0, report=after_step)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
