"""The gradient of the loss at the second symbol with respect to the fastest group at the step of that symbol, untrained.

The second symbol arrives at step 1, where no other group ticks. Copy problem with a delay of 50, trial 22 of seed 0, float64.
"""

import torch
import torch.nn.functional as F  # noqa: N812

from mistrnn.training import Study, study_task

for hidden in (256, 1024):
    for initialization in ("normal", "groups"):
        study = Study(
            task="copy",
            layer="clockwork",
            hidden=hidden,
            task_settings={"delay": 50},
            initialization=initialization,
            precision="fp64",
        )
        task = study_task(study)
        model = study.model(task)
        model.load_state_dict(study.initial_parameters(22, task))
        group = hidden // 8
        block = model.layer.weight_hh_l0[:group, :group].detach()
        inputs, targets = task.batch("val", torch.arange(100), torch.float64)
        with torch.no_grad():
            _, (h, clock) = model.layer(inputs[:2])
        h = h.clone().requires_grad_()
        scores, _ = model(inputs[2:], (h, clock))
        asked = 5 + 50 + 1  # the step at which the second symbol must be output
        F.cross_entropy(scores[asked - 2], targets[asked]).backward()
        print(
            f"{hidden} units, {initialization}: spectral radius of the fastest group's own block "
            f"{torch.linalg.eigvals(block).abs().max():.2f}; gradient at its state {h.grad[0, :, :group].norm():.1e}, "
            f"at all units {h.grad.norm():.1e}"
        )
