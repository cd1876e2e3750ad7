"""How often a study's models get each symbol wrong: python symbols.py FOLDER, of a copy study with a delay of 50."""

import sys

import torch

from mistrnn.training import Recorded, study_task

recorded = Recorded(sys.argv[1])
task = study_task(recorded.study())
inputs, targets = task.batch("val", torch.arange(1000))
for trial in recorded.trials():
    with torch.no_grad():
        scores, _ = recorded.model(trial["trial"], task).eval()(inputs)
    wrong = (scores.argmax(-1) != targets).double().mean(1)[-5:]
    print(f"trial {trial['trial']}: " + ", ".join(f"{100 * share:.1f}%" for share in wrong.tolist()))
