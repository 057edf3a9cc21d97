"""Passes that the scripts beside this one time: ours, through bench/gpu/attn_c.cpp as a shared object; FlashAttention-3's,
as operators of PyTorch that wheels bring; PyTorch's. Ours and FlashAttention-3's are given as (run, results): run() puts the
pass into the current stream; results, (O, LSE) or (dQ, dK, dV), are NaN before it."""
import ctypes, datetime, functools, json, math, os, random, statistics, sys, time

import torch
import torch.nn.functional as F
from torch.nn.attention import sdpa_kernel
from triton.testing import do_bench

pointer, integer = ctypes.c_void_p, ctypes.c_int


def at(tensor):
    return pointer(None if tensor is None else tensor.data_ptr())


def stream():
    return pointer(torch.cuda.current_stream().cuda_stream)


def unwritten(*tensors):
    return [torch.full_like(t, math.nan) for t in tensors]


DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16}


def random_inputs(b, n, heads_q, heads_k, d, dtype="bf16"):
    """Q, K, V and dO."""
    return [torch.randn(b, n, h, d, device="cuda", dtype=DTYPES[dtype]) for h in (heads_q, heads_k, heads_k, heads_q)]


class Attention:
    """Ours. A descriptor's problem and its inputs; d_o is needed by the backward pass alone.

    v: memory of its own, or k[..., :n] of a contiguous k. buffers: what mask and score read, in the order of their first
    use, then seed and offset where the descriptor has them in memory. lengths: of packed sequences, which follow each other in q, k, v and d_o of batch 1. pages: of k and v
    [pages, page_size, heads, head_dim], the table and the lengths of K, both int32 on the GPU. key_list: int32 [batch,
    1 or heads, seqlen_q, entries], of a descriptor with list<N>. scales: of K and of V, float32 [1] on the GPU, of types of
    caches that have them; v is then of q's head size."""

    def __init__(self, library, descriptor, q, k, v, d_o=None, buffers=(), lengths=(), pages=(), key_list=None,
                 scales=()):
        self.library, self.descriptor, self.inputs = ctypes.CDLL(library), descriptor, (q, k, v)
        self.d_o, self.read = d_o, (*buffers, None)
        self.buffers = (pointer * len(self.read))(*map(at, self.read))
        self.starts, self.pages, self.key_list, self.scales = None, pages, key_list, scales
        if lengths:
            starts = [sum(lengths[:i]) for i in range(len(lengths) + 1)]
            self.starts = torch.tensor(starts, dtype=torch.int32, device="cuda")

    def planned(self, entry, kernel):
        """A plan, its workspace, zeroed, and how many bytes that has."""
        plan, size = getattr(self.library, entry), ctypes.c_longlong()
        plan.restype = pointer
        handle = plan(self.descriptor.encode(), kernel.encode(), ctypes.byref(size))
        if not handle:
            sys.exit(1)
        if self.starts is not None:
            self.library.attn_set_packed(pointer(handle), at(self.starts), ctypes.c_longlong(self.inputs[0].shape[1]))
        if self.pages:
            table, used = self.pages
            sizes = map(ctypes.c_longlong, (self.inputs[1].shape[0], table.shape[1]))
            self.library.attn_set_pages(pointer(handle), at(table), *sizes, at(used))
        if self.key_list is not None:
            self.library.attn_set_key_list(pointer(handle), at(self.key_list), ctypes.c_longlong(self.key_list.shape[1]))
        if self.scales:
            self.library.attn_set_scales(pointer(handle), *map(at, self.scales))
        return pointer(handle), torch.zeros(max(1, size.value), dtype=torch.uint8, device="cuda"), size

    def forward(self, kernel="", batch_invariant=False, dtype=None, lse=True):
        """dtype: of O, where it is not that of Q. lse: whether it is asked for."""
        plan, space, size = self.planned("attn_plan_invariant" if batch_invariant else "attn_plan", kernel)
        q, _, v = self.inputs
        of_v = v.shape[-1] if v.dtype == q.dtype else q.shape[-1]
        o = torch.full((*q.shape[:-1], of_v), math.nan, device="cuda", dtype=dtype or q.dtype)
        sums = torch.full((q.shape[0], q.shape[2], q.shape[1]), math.nan, device="cuda")
        results = (o, sums if lse else None)
        return self.bound("attn_forward", plan, (*self.inputs, *results), space, size), results

    def backward(self, kernel="", deterministic=False, of_buffers=()):
        """of_buffers: float32 tensors for the gradients of `buffers`, which come after dQ, dK and dV."""
        plan, space, size = self.planned("attn_plan_deterministic" if deterministic else "attn_plan_backward", kernel)
        if of_buffers:
            self.library.attn_set_gradients(plan, (pointer * len(of_buffers))(*map(at, of_buffers)))
        run, gradients = self.backward_of(plan, space, size)
        return run, [*gradients, *of_buffers]

    def backward_of(self, plan, space, size):
        """backward() of a plan as planned() returns it, from O and LSE of our forward pass."""
        run, results = self.forward()
        run()
        gradients = unwritten(*self.inputs)
        return self.bound("attn_backward", plan, (*self.inputs, *results, self.d_o, *gradients), space, size), gradients

    def bound(self, entry, plan, tensors, space, size):
        """run() of a plan. What does not change between calls is made here, so that a call costs the host little."""
        call = getattr(self.library, entry)
        given = (plan, *map(at, tensors), self.buffers, at(space), size, stream())

        def run(keep=(self, tensors, space)):
            if call(*given):
                sys.exit(f"{entry} failed: {self.descriptor}")
        return run


@functools.cache
def flash_attention_3(library):
    """The operators of FlashAttention-3 in a wheel's extension: flash_attn_3/_C.so of xformers has both passes and pages, in bf16
    and f16 unless it was cut, and needs libcudart.so.12, which is taken from beside it; fa3_fwd/_C.abi3.so of fa3-fwd has the
    forward pass of bf16 and e4m3."""
    runtime = os.path.join(os.path.dirname(os.path.abspath(library)), "libcudart.so.12")
    if os.path.exists(runtime):
        ctypes.CDLL(runtime, mode=ctypes.RTLD_GLOBAL)
    had = hasattr(torch.ops.fa3_fwd, "fwd")
    torch.ops.load_library(library)
    return torch.ops.flash_attn_3 if hasattr(torch.ops.fa3_fwd, "fwd") == had else torch.ops.fa3_fwd


class FlashAttention3:
    """The dense problem of its inputs."""

    def __init__(self, library, q, k, v, causal, d_o=None):
        self.operators, self.inputs, self.causal, self.d_o = flash_attention_3(library), (q, k, v), causal, d_o
        self.scale = q.shape[-1] ** -0.5

    def forward(self):
        q = self.inputs[0]
        lse = torch.full((q.shape[0], q.shape[2], q.shape[1]), math.nan, device="cuda")
        results, forward = [*unwritten(q), lse], self.operators.fwd.default

        def run():
            options = (self.scale, self.causal, -1, -1, 0, 0.0, True, None, 1, None, 0)
            results[1] = forward(*self.inputs, None, None, None, results[0], *[None] * 16, *options)[1]
        return run, results

    def backward(self):
        forward, results = self.forward()
        forward()
        gradients, backward = unwritten(*self.inputs), self.operators.bwd.default
        given = (self.d_o, *self.inputs, *results, *gradients, *[None] * 6)

        def run():
            backward(*given, self.scale, self.causal, -1, -1, 0.0, False, 0)
        return run, gradients


def pytorch_forward(backend, q, k, v, causal=False):
    """run() of PyTorch's SDPA, which returns O, [batch, heads, seqlen, head_dim]."""
    given = [t.transpose(1, 2) for t in (q, k, v)]

    def run():
        with sdpa_kernel(backend):
            return F.scaled_dot_product_attention(*given, is_causal=causal)
    return run


def pytorch_backward(backend, q, k, v, d_o, causal=False, dropout=0.0):
    """run() of PyTorch's SDPA, which returns the gradients, [batch, heads, seqlen, head_dim]."""
    leaves = [t.transpose(1, 2).detach().requires_grad_() for t in (q, k, v)]
    with sdpa_kernel(backend):
        out = F.scaled_dot_product_attention(*leaves, is_causal=causal, dropout_p=dropout)
    given = d_o.transpose(1, 2)
    return lambda: torch.autograd.grad(out, leaves, given, retain_graph=True)


def apart(gradients, others):
    """How far they are from others, relative, at most; NaN where one is not finite."""
    return max((((a.float() - b.float()).norm() / b.float().norm()).item() for a, b in zip(gradients, others)),
               key=lambda x: math.inf if math.isnan(x) else x)


def median_ms(calls, rep):
    """Of each, the median of three rounds, each after a rest, in another order: a card under load slows down."""
    times = {name: [] for name in calls}
    for _ in range(3):
        for name in random.sample(list(calls), len(calls)):
            torch.cuda.synchronize()
            time.sleep(0.1)
            times[name].append(do_bench(calls[name], warmup=25, rep=rep, return_mode="median"))
    return {name: statistics.median(t) for name, t in times.items()}


def exact(q, k, v, causal=True):
    """O of a sequence in fp64, [queries, heads, head_dim_v]; causal: the last query sees the last key."""
    group = q.shape[1] // k.shape[1]
    k, v = (x.double().repeat_interleave(group, 1) for x in (k, v))
    s = torch.einsum("qhd,khd->hqk", q.double(), k) * q.shape[-1] ** -0.5
    if causal:
        hidden = torch.full(s.shape[1:], -math.inf, device="cuda", dtype=s.dtype)
        s += hidden.triu(s.shape[2] - s.shape[1] + 1)
    return torch.einsum("hqk,khd->qhd", s.softmax(-1), v)


def captured(call, copies, side):
    """A CUDA graph of call(0) .. call(copies - 1), made on the stream `side`."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side):
        for i in range(copies):
            call(i)
    return graph


def graph_us(graphs, rounds, replays):
    """Of each graph, the median microseconds of a replay: rounds of `replays` of them, in another order each time."""
    times = {name: [] for name in graphs}
    for _ in range(rounds):
        for name in random.sample(list(graphs), len(graphs)):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            graphs[name].replay()
            start.record()
            for _ in range(replays):
                graphs[name].replay()
            end.record()
            end.synchronize()
            times[name].append(start.elapsed_time(end) * 1e3 / replays)
    return {name: statistics.median(t) for name, t in times.items()}


class Results:
    """Rows of a run, printed and, where `out` is not empty, written as they come. head: what else is true of all rows."""

    def __init__(self, out, commit, **head):
        self.out, self.rows = out, []
        cudnn = torch.backends.cudnn.version()
        versions = f"PyTorch {torch.__version__}, cuDNN {cudnn // 10000}.{cudnn // 100 % 100}"
        self.head = dict(device=torch.cuda.get_device_name(), date=str(datetime.date.today()), commit=commit,
                         command="bench/gpu/" + " ".join(map(os.path.basename, sys.argv)), versions=versions, **head)

    def add(self, **row):
        print(row, flush=True)
        self.rows.append(row)
        self.save()
        return row

    def save(self):
        if self.out:
            with open(self.out, "w") as file:
                json.dump(self.head | dict(rows=self.rows), file, indent=1)
                file.write("\n")

    def add_speeds(self, row, flops, ms):
        """A row with TFLOP/s of "ours" and of each peer by their times, and the ratios of ours to the peers'."""
        speed = {name: flops * 1e-9 / time for name, time in ms.items()}
        ratios = {f"ours/{name}": round(speed["ours"] / x, 3) for name, x in speed.items() if name != "ours"}
        return self.add(**row, **{name: round(x, 1) for name, x in speed.items()}, **ratios)

    def print_means(self):
        for name in dict.fromkeys(key for row in self.rows for key in row if key.startswith("ours/")):
            ratios = [row[name] for row in self.rows if name in row]
            print(f"geometric mean {name.replace('/', ' / ')}: {statistics.geometric_mean(ratios):.3f}; "
                  f"cells at 1.00 or more: {sum(ratio >= 1 for ratio in ratios)} of {len(ratios)}")
