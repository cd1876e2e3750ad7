import sys; sys.path.insert(0,"src"); sys.path.insert(0,".")
import torch
from mistrnn.layers import LAYERS
dev="cuda"; torch.set_float32_matmul_precision("high")
name,H,E=sys.argv[1],int(sys.argv[2]),int(sys.argv[3]); T=int(sys.argv[4]) if len(sys.argv)>4 else 100
torch.manual_seed(0)
l=LAYERS[name](1,H).to(dev); x=torch.randn(T,100*E,1,device=dev)
for _ in range(2):
    o,_=l(x); o.sum().backward()
torch.cuda.synchronize()
