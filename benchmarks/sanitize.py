"""Run every kernel once, small, for compute-sanitizer to watch.

    PYTORCH_NO_CUDA_MEMORY_CACHING=1 compute-sanitizer --tool memcheck python benchmarks/sanitize.py

Without torch's cache of memory a read or write beyond a tensor is seen.
"""

import torch

from mistrnn.kernels import _run
from mistrnn.kernels._variant import Launch, Variant
from mistrnn.layers import LAYERS

torch.set_float32_matmul_precision("high")
for cluster in (1, 2):
    _run.choose = lambda problem, *_, n=cluster: Variant(problem, Launch(cluster=n), 90)
    _run.plans.clear()
    for name, kind in LAYERS.items():
        layer = kind(1, 40, bidirectional=True).cuda()
        x = torch.randn(11, 9, 1, device="cuda", requires_grad=True)
        output, _ = layer(x, lengths=[11, 3, 0, 11, 7, 1, 2, 11, 5], reset=torch.rand(11, 9, device="cuda") < 0.1)
        output.square().sum().backward()
        layer(torch.randn(11, 9, 1, device="cuda"))[0].square().sum().backward()
        torch.cuda.synchronize()
        print(name, "in clusters of", cluster, "done", flush=True)
