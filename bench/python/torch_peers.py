"""attn.torch beside PyTorch's own ways to attend, forward and with backward, on one GPU, bf16.

  python bench/python/torch_peers.py --json h200-torch-peers.json --seconds 100
  python bench/python/torch_peers.py --json cpu.json --device cpu --tokens 256 --columns 128 --lengths 64,128

Writes the results, and beside them a table (.md) and a figure (.svg) by torch_peers_report.py.

Peers: SDPA by cuDNN, SDPA by FlashAttention-2, compiled FlexAttention. A peer without a number refuses the problem
or fails its check. Cells: causal, a causal window of 1024 keys, causal documents, ALiBi, softcap; head sizes 64 and
128; n 1k to 16k, 16384 tokens and 2048 / d heads each. Some rows of each output are checked against float64 first. Numbers
are medians of CUDA events in milliseconds, the four in random order, three rounds; "first" is the wall time in seconds of
the first call and the first gradients, compilation and mask included, with empty caches. On a CPU
FlexAttention has no gradients and is left out: that device shows that the script works, and compares nothing.

Each cell is a process of its own, --jobs of them at a time, so that they compile beside each other; a lock lets one at a time
measure. They are forked from one that has imported PyTorch: "first" has no imports. Rows are written as they are finished,
and all ends after --seconds."""

import argparse
import fcntl
import functools
import itertools
import json
import multiprocessing
import os
import random
import statistics
import sys
import tempfile
import time

import measured
import torch_peers_report

KINDS = ("causal", "window", "document", "alibi", "softcap")
LENGTHS = (4096, 16384, 1024, 8192, 2048)  # in the order of what one wants to know first
WINDOW, SOFTCAP = 1024, 30.0
ROWS_CHECKED, MOST_ERROR = 32, 0.03


class Cell:
    """The tensors of a problem, and its mask and score in the words of each implementation."""

    def __init__(self, torch, kind, d, n, options):
        device = options.device
        self.torch, self.kind, self.n, self.d, self.device = torch, kind, n, d, device
        generator = torch.Generator(device).manual_seed(n + d)
        shape = (max(1, options.tokens // n), max(1, options.columns // d), n, d)
        dtype = torch.bfloat16
        self.q, self.k, self.v, self.d_out = (
            torch.randn(shape, generator=generator, device=device, dtype=dtype) for _ in range(4))
        heads = shape[1]
        self.slopes = 2.0 ** (-8 * torch.arange(1, heads + 1, device=device) / heads)
        # Four documents to a sequence, of unequal lengths.
        bounds = torch.tensor([n // 8, n // 2, 3 * n // 4], device=device)
        self.documents = torch.searchsorted(
            bounds, torch.arange(n, device=device), right=True).to(torch.int32)

    def seen(self, query, key):
        """Whether the query sees the key: of numbers, tensors or Flex's symbols."""
        seen = query >= key
        if self.kind == "window":
            return seen & (query - key < WINDOW)
        if self.kind == "document":
            return seen & (self.documents[query] == self.documents[key])
        return seen

    def score(self, score, head, query, key):
        if self.kind == "alibi":
            return score - self.slopes[head] * (query - key)
        if self.kind == "softcap":
            return SOFTCAP * self.torch.tanh(score / SOFTCAP)
        return score

    def ours(self):
        import attn
        import attn.torch

        options = {"causal": True}
        if self.kind == "window":
            options["window"] = (WINDOW - 1, 0)
        if self.kind == "document":
            options["mask"] = attn.Formula("ids[query] == ids[key]", ids=self.documents)
        if self.kind == "alibi":
            options["alibi"] = self.slopes
        if self.kind == "softcap":
            options["softcap"] = SOFTCAP
        return functools.partial(attn.torch.attention, layout="bhsd", **options)

    def sdpa(self, backend):
        from torch.nn.attention import SDPBackend, sdpa_kernel

        if self.kind == "softcap":
            raise NotImplementedError
        options = {"is_causal": True}
        if self.kind != "causal":
            places = self.torch.arange(self.n, device=self.device)
            mask = self.seen(places[:, None], places[None, :])[None, None]
            if self.kind == "alibi":
                far = self.slopes[:, None, None] * (places[None, :] - places[:, None])
                mask = far.to(self.q.dtype)[None].masked_fill_(~mask, float("-inf"))
            options = {"attn_mask": mask}

        def call(q, k, v):
            with sdpa_kernel(getattr(SDPBackend, backend)):
                return self.torch.nn.functional.scaled_dot_product_attention(q, k, v, **options)

        return call

    def flex(self):
        from torch.nn.attention.flex_attention import create_block_mask, flex_attention

        compiled = self.torch.compile if self.device == "cuda" else lambda call, **_: call
        # Not compiled: that took 215 s of n 16384, and 50 s of 8192.
        mask = create_block_mask(
            lambda b, h, q, k: self.seen(q, k), None, None, self.n, self.n, device=self.device)
        changes = self.kind in ("alibi", "softcap")
        options = {"block_mask": mask}
        if changes:
            options["score_mod"] = lambda s, b, h, q, k: self.score(s, h, q, k)
        call = compiled(flex_attention, dynamic=False)
        return lambda q, k, v: call(q, k, v, **options)

    def implementations(self):
        return {
            "attn": self.ours,
            "cudnn": functools.partial(self.sdpa, "CUDNN_ATTENTION"),
            "fa2": functools.partial(self.sdpa, "FLASH_ATTENTION"),
            "flex": self.flex,
        }

    def error(self, out):
        """The largest difference from float64 in some rows of the last head."""
        torch = self.torch
        rows = torch.randperm(self.n, device=self.device)[:ROWS_CHECKED]
        q, k, v = (t[-1, -1].double() for t in (self.q, self.k, self.v))
        keys = torch.arange(self.n, device=self.device)[None, :]
        scores = self.score(q[rows] @ k.T / self.d**0.5, -1, rows[:, None], keys)
        scores = scores.masked_fill(~self.seen(rows[:, None], keys), float("-inf"))
        return (torch.softmax(scores, -1) @ v - out[-1, -1][rows].double()).abs().max().item()


def milliseconds(torch, call, device, seconds=0.03):
    """The median of single calls, by the clock of the device."""
    times, stop = [], time.perf_counter() + seconds
    while len(times) < 5 or time.perf_counter() < stop:
        if device == "cuda":
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            call()
            end.record()
            torch.cuda.synchronize()
            times.append(begin.elapsed_time(end))
        else:
            begin = time.perf_counter()
            call()
            times.append(1e3 * (time.perf_counter() - begin))
    return statistics.median(times)


def gradients(torch, cell, out, leaves):
    return torch.autograd.grad(out, leaves, cell.d_out, retain_graph=True)


def worker(kind, d, n, lock_path, folder, options):
    """Writes a row of JSON to FOLDER/row.json; all caches are in the folder."""
    for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "ATTN_CACHE_DIR"):
        os.environ[name] = os.path.join(folder, name)
    torch = imported()
    torch.set_num_threads(1)
    cell = Cell(torch, kind, d, n, options)
    leaves = [t.detach().requires_grad_() for t in (cell.q, cell.k, cell.v)]
    calls, outputs, first = {}, {}, {}
    for name, make in cell.implementations().items():
        start = time.perf_counter()
        try:
            call = make()
            error = cell.error(call(cell.q, cell.k, cell.v))
            out = call(*leaves)
            gradients(torch, cell, out, leaves)
        except (NotImplementedError, RuntimeError) as refused:
            print(f"{kind} d {d} n {n} {name}: {str(refused)[:200]}", file=sys.stderr)
            continue
        if options.device == "cuda":
            torch.cuda.synchronize()
        first[name] = round(time.perf_counter() - start, 2)
        if not error < MOST_ERROR:
            print(f"{kind} d {d} n {n} {name}: off by {error}", file=sys.stderr)
            continue
        calls[name], outputs[name] = call, out
    row = {"kind": kind, "d": d, "n": n, "first": first}
    with open(lock_path, "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        row |= timed(torch, cell, calls, outputs, leaves)
    measured.save(os.path.join(folder, "row.json"), row)


def imported():
    """PyTorch, with all that the cells import; it has not asked for a GPU yet."""
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"  # a process that asked CUDA cannot be forked
    import torch
    import torch._functorch.config
    import torch._inductor.compile_fx
    import torch.nn.attention.flex_attention

    import attn.torch

    torch._functorch.config.donated_buffer = False  # or a backward pass could run once only
    return torch


def timed(torch, cell, calls, outputs, leaves):
    passes = {
        "forward": lambda name: calls[name](cell.q, cell.k, cell.v),
        "backward": lambda name: gradients(torch, cell, outputs[name], leaves),
    }
    found = {}
    for phase, run in passes.items():
        times = {name: [] for name in calls}
        for name in calls:
            run(name)
        for _ in range(3):
            for name in random.sample(list(calls), len(calls)):
                times[name].append(milliseconds(torch, functools.partial(run, name), cell.device))
        found[phase] = {name: round(statistics.median(t), 4) for name, t in times.items()}
    return found


def probe(device):
    imported().zeros(1, device=device)


def start_method(device):
    """"fork", or "spawn" where a process that was forked cannot use the device."""
    imported()
    forked = multiprocessing.get_context("fork").Process(target=probe, args=(device,))
    forked.start()
    forked.join()
    return "fork" if forked.exitcode == 0 else "spawn"


def run_workers(options, show):
    method = start_method(options.device)
    print(f"processes start by {method}", file=sys.stderr)
    context = multiprocessing.get_context(method)
    stop = time.monotonic() + options.seconds
    left = list(itertools.product(
        options.lengths.split(","), options.kinds.split(","), options.head_dims.split(",")))
    running = {}
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        lock = os.path.join(folder, "lock")
        while (left or running) and time.monotonic() < stop:
            while left and len(running) < options.jobs:
                n, kind, d = left.pop(0)
                own = os.path.join(folder, f"{kind}-{d}-{n}")
                os.mkdir(own)
                process = context.Process(target=worker, args=(kind, int(d), int(n), lock, own, options))
                process.start()
                running[process] = os.path.join(own, "row.json")
            time.sleep(0.05)
            for process in [p for p in running if p.exitcode is not None]:
                path = running.pop(process)
                if process.exitcode == 0:
                    with open(path) as file:
                        show(json.load(file))
        for process in running:
            process.kill()
            process.join()


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--head-dims", default="64,128")
    parser.add_argument("--lengths", default=",".join(map(str, LENGTHS)))
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--tokens", type=int, default=16384)
    parser.add_argument("--columns", type=int, default=2048, help="heads * head size")
    parser.add_argument("--seconds", type=float, default=200)
    parser.add_argument("--jobs", type=int, default=max(1, (os.cpu_count() or 2) - 1))
    parser.add_argument("--json")
    options = parser.parse_args()
    result = {
        "command": " ".join(["python", *sys.argv]), "device": options.device, "tokens": options.tokens,
        "columns": options.columns, "unit": "ms", "rows": [],
    }

    def show(row):
        result["rows"].append(row)
        measured.save(options.json, result)
        print(*(f"{key}={value}" for key, value in row.items()), flush=True)

    try:
        run_workers(options, show)
    finally:  # a limit of time from outside may end it
        if options.json and result["rows"]:
            torch_peers_report.write(options.json)


if __name__ == "__main__":
    main()
