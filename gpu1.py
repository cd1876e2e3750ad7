"""First contact: correctness by the tolerance rule, then times of variants."""
import os, sys, time, json, itertools
sys.path.insert(0, "."); sys.path.insert(0, "src")
import torch
from mistrnn.layers import LAYERS, MIST, LSTM, RNN
from mistrnn.kernels import cuda, choices, _nvrtc
from mistrnn.kernels._variant import Launch, Variant
torch.backends.cudnn.allow_tf32=True
dev=torch.device("cuda")
def rel(a,b): return ((a.double()-b.double()).norm()/(b.double().norm()+1e-30)).item()
def measure(layer, form, dtype, x, lengths=None):
    import copy
    l=copy.deepcopy(layer).to(dtype); l.form=form
    x=x.to(dtype).clone().requires_grad_()
    out,st=l(x)
    w=torch.linspace(-1,1,out.numel(),device=dev,dtype=torch.float64).view(out.shape).to(dtype)
    (out*w).sum().backward()
    r={"output":out.detach(),"x":x.grad}
    r|={n:p.grad for n,p in l.named_parameters()}
    return r
print(torch.cuda.get_device_name(), torch.__version__, "nvrtc problem:", _nvrtc.problem())
import os
if os.environ.get("CHECK","1")=="1":
    t=time.time()
    for prec in ("high","highest"):
        torch.set_float32_matmul_precision(prec)
        for name,H in (("rnn",198),("lstm",100),("gru",100),("clockwork",256),("narx",50),("mist",139),("lstm",139),("mist",512)):
            torch.manual_seed(0)
            layer=LAYERS[name](1 if H!=512 else 7,H).to(dev)
            x=torch.randn(60,19,layer.input_size,device=dev)
            try:
                ref=measure(layer,"plain",torch.float64,x); pl=measure(layer,"plain",torch.float32,x); fu=measure(layer,"fused",torch.float32,x)
                print(prec,name,H,{k:f"{rel(fu[k],ref[k]):.1e}/{rel(pl[k],ref[k]):.1e}" for k in ref},flush=True)
            except Exception as e:
                print(prec,name,H,"FAILED",repr(e)[:600],flush=True)
    print("correctness took",time.time()-t)
def bench(f,n=10):
    for _ in range(2): f()
    torch.cuda.synchronize(); ts=[]
    for _ in range(n):
        a,b=torch.cuda.Event(enable_timing=True),torch.cuda.Event(enable_timing=True)
        a.record(); f(); b.record(); torch.cuda.synchronize(); ts.append(a.elapsed_time(b))
    return sorted(ts)[len(ts)//2]
T,B=784,100
x=torch.randn(T,B,1,device=dev)
torch.set_float32_matmul_precision("high")
def fb(l,x):
    def f():
        for p in l.parameters(): p.grad=None
        o,_=l(x); o[-1].sum().backward()
    return f
for l in (torch.nn.LSTM(1,100),torch.nn.LSTM(1,139),torch.nn.RNN(1,198)):
    l=l.to(dev)
    with torch.no_grad(): fw=bench(lambda:l(x))
    print("cudnn",type(l).__name__,l.hidden_size,f"fwd {fw:.2f} f+b {bench(fb(l,x)):.2f}",flush=True)
from mistrnn.kernels.ops import run as _r
def raw(name,H,E,launches,prec="high",xx=None):
    """Kernel times alone, forwards and backwards, for launch choices."""
    torch.set_float32_matmul_precision(prec)
    torch.manual_seed(0)
    l=LAYERS[name](1,H).to(dev)
    from mistrnn.kernels.contract import INPUTS,Settings
    w={k.removesuffix("_l0"):p.detach().expand(E,*p.shape).contiguous() for k,p in l.named_parameters()}
    M=l._memory()
    given=dict.fromkeys(INPUTS)|w|{"x":torch.randn(E,T,B,1,device=dev),"initial_h":torch.zeros(E,M,B,H,device=dev)}
    if name=="lstm": given["initial_c"]=torch.zeros(E,1,B,H,device=dev)
    if name=="clockwork": given["clock"]=torch.zeros(E,B,dtype=torch.int64,device=dev)
    s=Settings(list(l._delays()),0.0,False,True,cuda.PARTS[prec])
    for L in launches:
        saved_choose=cuda.choose
        if L is not None: cuda.choose=lambda p,E,B,d: Variant(p,L,90)
        try:
            r=cuda._Run(name,given,s,"cuda"); vf=cuda.choose(r.problem(False),E,B,dev); vb=cuda.choose(r.problem(True),E,B,dev)
            o=cuda.forward(name,given,s)
            f=bench(lambda:cuda.forward(name,given,s),5)
            g={"d_output":torch.zeros_like(o[0]),"d_final_h":None,"d_final_c":None}
            b=bench(lambda:cuda.backward(name,g,given,o[0],o[3],s,[False,True,False]),5)
            run=cuda._Run.launch
            # kernel alone
            def launch_only(self,variant):
                pass
            cuda._Run.launch=launch_only
            f0=bench(lambda:cuda.forward(name,given,s),5); b0=bench(lambda:cuda.backward(name,g,given,o[0],o[3],s,[False,True,False]),5)
            cuda._Run.launch=run
            print(name,H,"E",E,prec,L,f"W {vf.warps}/{vb.warps}",f"fwd {f:.2f} (kernel {f-f0:.2f}) bwd {b:.2f} (kernel {b-b0:.2f}) total {f+b:.2f}", [(q.tall,q.wide,q.in_registers,q.in_shared) for q in vf.shapes],[(q.tall,q.wide,q.in_registers,q.in_shared) for q in vb.shapes],f"mem {torch.cuda.max_memory_allocated()/2**30:.1f}G",flush=True)
        except Exception as e:
            print(name,H,E,L,"FAILED",repr(e)[:300],flush=True)
        finally:
            cuda.choose=saved_choose
# split-K
torch.set_float32_matmul_precision("high")
for (M_,N_,Ms,Ns) in ((147,139,288,140),(198,198,200,200),(400,100,400,100),(139,139,288,139)):
    a=torch.randn(50,78400,Ms,device=dev)[...,:M_]; b=torch.randn(50,78400,Ns,device=dev)[...,:N_]
    for S in (1,2,4,8,16,32):
        aa=a.unflatten(1,(S,-1)).flatten(0,1); bb=b.unflatten(1,(S,-1)).flatten(0,1)
        t_=bench(lambda: torch.bmm(aa.mT,bb),5)
        print("wgrad",M_,N_,Ms,Ns,"split",S,f"{t_:.2f} ms",flush=True)
    del a,b,aa,bb
for spec in json.loads(os.environ.get("SPECS","[]")):
    name,H,E=spec[:3]
    raw(name,H,E,[eval(x) if x else None for x in spec[3]],*spec[4:])
