"""Appendix E of the FlashAttention paper on one GPU, in one process: tables 9 to 21 (E.6), 7 (E.4) and the head sizes of E.5, beside peers.

  python3 bench/papers/tables_gpu.py --library attn_c.so --out build/tables_gpu.json --seconds 200
  python3 bench/papers/tables_gpu.py --library attn_c.so --out build/table20.json --parts plain --methods "attn, block-sparse;SDPA flash"

Parts, in this order: plain (tables 18 to 20, and 21: memory), mask_dropout (9 to 11), short (7), heads (figures 5 and 6: speed-up over n 256 to 4096 for head
sizes 32 to 256, plain, with a mask, with mask and dropout, causal; with --out a figure beside it, by speedups.py, which also tells where methods cross), compiled (plain again, of what PyTorch compiles: torch.compile and flex_attention), mask (12 to 14; with these two where --methods names them), dropout (15 to 17). Each cell is checked before it is
timed (cell_check.py): O, dQ, dK and dV of some heads beside fp64, attn's with the bits of its own dropout; a peer's dropout, whose bits nobody knows, by its mean, its variance, and by
forward and backward having the same; approximations (approximations.py) beside themselves in fp64, which agree with their definition up to n 1024. Times: medians of CUDA events, forward, backward, and both in one; memory: what a step of both adds to the allocator. "-": out of memory, longer than --most seconds a
call, or not to be had. Rows are written as they are finished, and nothing new begins after --seconds. Needs PyTorch."""
import argparse, ctypes, functools, itertools, json, math, os, statistics, sys, time, warnings

import torch
import torch._dynamo
import torch._functorch.config
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import approximations, cell_check, io_gpu, paper, speedups

arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
arguments.add_argument("--library", required=True)
arguments.add_argument("--attn", default="", help="the command, to compile kernels ahead on all cores")
arguments.add_argument("--arch", default="sm_90a")
arguments.add_argument("--out", default="")
arguments.add_argument("--parts", default="plain,mask_dropout,short,heads,compiled,mask,dropout")
arguments.add_argument("--methods", default="", help="names, separated by semicolons; default: all")
arguments.add_argument("--lengths", default="128,256,512,1024,2048,4096,8192,16384,32768,65536")
arguments.add_argument("--dims", default="32,64,128,256", help="head sizes of the part heads")
arguments.add_argument("--small", action="store_true", help="one sequence of four heads everywhere, to try the script")
arguments.add_argument("--seconds", type=float, default=200)
arguments.add_argument("--most", type=float, default=1.5, help="seconds that a call is expected to take at most, by the length before")
options = arguments.parse_args()
BEGIN = time.monotonic()
DROPOUT, BLOCK = 0.1, 128
COMPILED = ("PyTorch compiled", "Flex")
torch._dynamo.config.recompile_limit = 64  # each length of a part, forward alone and with gradients
torch._functorch.config.donated_buffer = False  # or a backward pass could be timed once only
warnings.filterwarnings("ignore")  # SDPA says at length why a backend does not take a problem; the cell is "-"
PART = {"plain": (False, False), "compiled": (False, False), "mask_dropout": (True, True), "mask": (True, False), "dropout": (False, True)}
pointer = ctypes.c_void_p
io_gpu.require_gpu()
library = io_gpu.load(options.library)
library.attn_plan_backward.restype = pointer


def out_of_time():
    return time.monotonic() - BEGIN > options.seconds


def butterfly(n):
    """Blocks that BlockMask::butterfly leaves: the diagonal, and numbers that differ in one bit."""
    blocks = -(-n // BLOCK)
    i, j = torch.arange(blocks)[:, None], torch.arange(blocks)[None, :]
    differ = i ^ j
    return ((differ & (differ - 1)) == 0).to(torch.uint8).cuda()


def descriptor(problem, sparse):
    n = problem["n"]
    mask = (f"_mask(key<{n - 10})" if problem["mask"] else "") + ("_causal" if problem["causal"] else "") + (f"_butterfly{BLOCK}" if sparse else "")
    dropout = f"_dropout{DROPOUT}" if problem["dropout"] else ""
    return f"b{problem['b']}_n{n}_h{problem['h']}_d{problem['d']}{mask}{dropout}_f16"


class Ours:
    """attn, on tensors [b, n, h, d]. sparse: the butterfly of blocks of 128."""

    def __init__(self, problem, q, k, v, d_o, sparse):
        n, text = problem["n"], descriptor(problem, sparse)
        self.tensors = q, k, v, d_o
        self.buffers = [butterfly(n)] if sparse else []
        self.plans = []
        for plan in (library.attn_plan, library.attn_plan_backward):
            size = ctypes.c_longlong()
            handle = plan(text.encode(), b"", ctypes.byref(size))
            if not handle:
                raise RuntimeError(f"{text}: no plan")
            self.plans.append((pointer(handle), size))

    def allocate(self):
        q = self.tensors[0]
        self.o, self.dq, self.dk, self.dv = (torch.full_like(q, math.nan) for _ in range(4))
        self.lse = torch.full((q.shape[0], q.shape[2], q.shape[1]), math.nan, device="cuda")
        # One workspace serves both passes: they run after each other.
        self.space = torch.empty(max(1, *(size.value for _, size in self.plans)), dtype=torch.uint8, device="cuda")

    def run(self, function, plan, *tensors):
        at = lambda t: pointer(t.data_ptr())
        handle, size = self.plans[plan]
        buffers = (pointer * max(1, len(self.buffers)))(*map(at, self.buffers))
        if function(handle, *map(at, tensors), buffers, at(self.space), size, pointer(torch.cuda.current_stream().cuda_stream)):
            raise RuntimeError("the run failed")

    def forward(self):
        q, k, v, _ = self.tensors
        self.run(library.attn_forward, 0, q, k, v, self.o, self.lse)
        return self.o

    def backward(self):
        q, k, v, d_o = self.tensors
        self.run(library.attn_backward, 1, q, k, v, self.o, self.lse, d_o, self.dq, self.dk, self.dv)

    def both(self):
        self.forward()
        self.backward()

    def results(self):
        """O, dQ, dK and dV, each written by this call."""
        for t in (self.o, self.lse, self.dq, self.dk, self.dv):
            t.fill_(math.nan)
        self.both()
        return self.o, self.dq, self.dk, self.dv


class Peer:
    """A function of q, k, v [b, h, n, d] and autograd."""

    def __init__(self, problem, q, k, v, d_o, function):
        self.leaves = [t.transpose(1, 2).contiguous().requires_grad_() for t in (q, k, v)]
        self.d_o = d_o.transpose(1, 2).contiguous()
        n = problem["n"]
        keys = torch.arange(n, device="cuda")
        mask = (keys < n - 10)[None, :] if problem["mask"] else None
        if problem["causal"] and not hasattr(function, "knows_causal"):
            mask = keys[None, :] <= keys[:, None]
        self.call = functools.partial(function, *self.leaves)
        self.words = {"mask": mask, "dropout": DROPOUT if problem["dropout"] else 0.0, "causal": problem["causal"]}
        self.graph = None

    def allocate(self):
        pass

    def forward(self):
        with torch.no_grad():
            return self.call(**self.words).transpose(1, 2)

    def backward(self):
        if self.graph is None:
            self.graph = self.call(**self.words)
        torch.autograd.grad(self.graph, self.leaves, self.d_o, retain_graph=True, allow_unused=True)

    def both(self):
        return torch.autograd.grad(self.call(**self.words), self.leaves, self.d_o, allow_unused=True)

    def results(self):
        """O, dQ, dK and dV of one call: with dropout, of the same bits."""
        o = self.call(**self.words)
        gradients = torch.autograd.grad(o, self.leaves, self.d_o, allow_unused=True)
        return [None if t is None else t.detach().transpose(1, 2) for t in (o, *gradients)]


def eager(q, k, v, mask, dropout, causal):
    s = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
    if mask is not None:
        s = s.masked_fill(~mask, -math.inf)
    return F.dropout(torch.softmax(s, -1), dropout) @ v


def sdpa(backend):
    def attend(q, k, v, mask, dropout, causal):
        with sdpa_kernel(backend):
            given = mask.expand(q.shape[0], 1, q.shape[2], q.shape[2]) if mask is not None and not causal else None
            return F.scaled_dot_product_attention(q, k, v, attn_mask=given, dropout_p=dropout, is_causal=causal)
    attend.knows_causal = True
    return attend


def flex():
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention
    compiled = torch.compile(flex_attention, dynamic=False)

    def attend(q, k, v, mask, dropout, causal):
        if dropout:
            raise NotImplementedError("flex_attention has no dropout")
        n, blocks = q.shape[2], None
        if causal:
            blocks = create_block_mask(lambda b, h, i, j: i >= j, None, None, n, n)
        elif mask is not None:
            blocks = create_block_mask(lambda b, h, i, j: j < n - 10, None, None, n, n)
        return compiled(q, k, v, block_mask=blocks)
    attend.knows_causal = True
    return attend


def approximation(function):
    def attend(q, k, v, mask, dropout, causal):
        if mask is not None or dropout:
            raise NotImplementedError("the references have neither mask nor dropout")
        return function(q, k, v)
    return attend


METHODS = {"attn": None, "attn, block-sparse": None, "SDPA flash": sdpa(SDPBackend.FLASH_ATTENTION), "SDPA cuDNN": sdpa(SDPBackend.CUDNN_ATTENTION),
           "PyTorch eager": eager, **{name: approximation(function) for name, function in approximations.ALL.items()}}
EXACT = ("attn", "SDPA flash", "SDPA cuDNN", "PyTorch eager", "PyTorch compiled", "Flex")


def method(name):
    if name == "PyTorch compiled":
        return torch.compile(eager, dynamic=False)
    return flex() if name == "Flex" else METHODS[name]


def dropped_by_attn(problem, heads):
    """What dropout multiplies P by, of each of these heads: functions of a slice of queries. Bits are the library's own."""
    b, n, h = (problem[x] for x in "bnh")
    whole = heads != [(0, 0)]
    b, h = (b, h) if whole else (1, 1)
    kept = torch.full((b, h, n, n), 2, dtype=torch.uint8, device="cuda")
    if library.attn_dropout_mask(f"b{b}_n{n}_h{h}_d{problem['d']}_dropout{DROPOUT}_f16".encode(), pointer(kept.data_ptr()), pointer(torch.cuda.current_stream().cuda_stream)):
        raise RuntimeError("no mask of the dropout")
    if bool((kept == 2).any()):
        raise RuntimeError("the mask of the dropout was not written")
    factor = 1 / (1 - round(65536 * DROPOUT) / 65536)
    return [lambda rows, of=kept[at]: of[rows].to(torch.double) * factor for at in heads]


def check(name, problem, given, results, o):
    """given: q, k, v and dO; results: O, dQ, dK, dV of a step; o: O of the forward pass alone. All [b, n, h, d]. Raises cell_check.Wrong."""
    b, n, h = (problem[x] for x in "bnh")
    what = f"{name} {problem}"
    for of, t in zip(("O alone", *cell_check.NAMES), (o, *results)):
        if t is not None and not bool(t.isfinite().all()):
            raise cell_check.Wrong(f"{what}: {of} is not finite")
    if name in approximations.ALL:
        by_head = lambda tensors: [None if t is None else t.transpose(1, 2).contiguous() for t in tensors]  # as Peer has them: hashes of the same bits
        cell_check.approximate(what, name, by_head(results), by_head(given))
        cell_check.approximate(what, name, by_head((o, *results[1:])), by_head(given), (0, 0))
        return

    def hidden(rows):
        keys = torch.arange(n, device="cuda")[None, :]
        gone = torch.zeros(len(rows), n, dtype=torch.bool, device="cuda")
        if problem["mask"]:
            gone |= keys >= n - 10
        if problem["causal"]:
            gone |= keys > rows[:, None]
        if name == "attn, block-sparse":
            gone |= ~butterfly(n).bool()[rows // BLOCK].repeat_interleave(BLOCK, 1)[:, :n]
        return gone
    heads = cell_check.some_heads(b, h, n)
    one = lambda tensors, at: [None if t is None else t[at[0], :, at[1]] for t in tensors]
    if not problem["dropout"]:
        times = 2 if name.startswith("attn") else 4
        for at in heads:
            cell_check.exact(what, one(results, at), one(given, at), hidden, None, times)
        cell_check.exact(f"{what}, forward alone", [o[at[0], :, at[1]], None, None, None], one(given, at), hidden, None, times)
    elif name.startswith("attn"):
        if b * h * n * n > 1 << 33:  # bytes of the mask
            heads = [(0, 0)]
        for at, z in zip(heads, dropped_by_attn(problem, heads)):
            cell_check.exact(what, one(results, at), one(given, at), hidden, z)
    else:
        cell_check.dropped(what, [(one(results, at), one(given, at)) for at in heads], DROPOUT, hidden)


def seconds_of(call):
    call()
    times, begin = [], time.monotonic()
    while len(times) < 3 or (len(times) < 100 and time.monotonic() - begin < 0.06):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        call()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end) * 1e-3)
    return statistics.median(times)


def cell(name, function, problem):
    """Seconds of forward, backward and both, and bytes of a step; None where it cannot be had, with why."""
    # PyTorch's formula rounds S twice and may err by a little more than `exact` allows of a maximum, so a peer's inputs are drawn once more; what is not
    # right fails twice.
    seeds = (1,) if name.startswith("attn") else (1, 2)
    for seed in seeds:
        try:
            return attempt(name, function, problem, seed), ""
        except torch.OutOfMemoryError:
            return None, "out of memory"
        except cell_check.Wrong as error:
            print(f"({error}) ", end="", flush=True)
            why = str(error)
        except (NotImplementedError, RuntimeError) as error:
            return None, str(error).splitlines()[0][:120]
    WRONG.append(why)
    return None, f"wrong, so not timed: {why}"


def attempt(name, function, problem, seed):
    torch.cuda.empty_cache()
    torch.manual_seed(seed)
    q, k, v, d_o = (torch.randn(problem["b"], problem["n"], problem["h"], problem["d"], device="cuda", dtype=torch.half) for _ in range(4))
    run = Ours(problem, q, k, v, d_o, "sparse" in name) if name.startswith("attn") else Peer(problem, q, k, v, d_o, function)
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    run.allocate()
    run.both()
    bytes_ = torch.cuda.max_memory_allocated() - before
    o = run.forward().clone()
    check(name, problem, (q, k, v, d_o), run.results(), o)
    return {"forward": seconds_of(run.forward), "backward": seconds_of(run.backward), "both": seconds_of(run.both), "bytes": bytes_}


def table(part, names, problems, rows=None):
    """Rows of cells, printed as they come: milliseconds of forward, backward, both. rows: those of the part that there are already, made longer."""
    print(f"\n{part}: ms forward / backward / both")
    print("".ljust(20) + "".join(str(problem["label"]).rjust(22) for problem in problems))
    rows = {} if rows is None else rows
    for name in names:
        if out_of_time():
            break
        function, line, last = method(name), [], None
        print(name.ljust(20), end="", flush=True)
        for problem in problems:
            longer = last is not None and last["n"] < problem["n"] and last["seconds"] * (problem["n"] / last["n"]) ** 2 > options.most
            got, why = (None, "would take long, or no time is left") if longer or out_of_time() else cell(name, function, problem)
            if got is not None:
                last = {"n": problem["n"], "seconds": got["both"]}
            line.append({"problem": problem, **(got or {"missing": why})})
            text = ("wrong" if why.startswith("wrong") else "-") if got is None else " ".join(f"{got[phase] * 1e3:.3g}" for phase in ("forward", "backward", "both"))
            print(text.rjust(22), end="", flush=True)
        print()
        rows[name] = rows.get(name, []) + line
        save(part, rows)
    return rows


WRONG = []
RESULT = {"command": " ".join(["python3", *sys.argv]), "gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "cudnn": torch.backends.cudnn.version(),
          "units": "seconds, bytes", "paper": {"lengths": paper.LENGTHS, "tables, ms and MB": paper.TABLES}, "parts": {}}


def save(part, rows):
    RESULT["parts"][part] = rows
    RESULT.update(speedups.report(RESULT["parts"]))
    if options.out:
        with open(options.out, "w") as file:
            json.dump(RESULT, file, indent=1)
            file.write("\n")
        drawn = speedups.figure(RESULT["parts"].get("heads", {}), f"Speed-up of attn, forward and backward, on one {RESULT['gpu']}")
        if drawn:
            with open(os.path.splitext(options.out)[0] + "-heads.svg", "w") as file:
                file.write(drawn)


def problem_of(b, n, h, d, mask=False, dropout=False, causal=False, label=None):
    b, h = (1, 4) if options.small else (b, h)
    return {"b": b, "n": n, "h": h, "d": d, "mask": mask, "dropout": dropout, "causal": causal, "label": label or n}


def problems_of(part, lengths):
    if part == "short":
        return [problem_of(64, n, 16, 64, True, True) for n in (128, 256, 512)]
    if part == "heads":
        return [problem_of(8, n, 12, d, **flags) for d in map(int, options.dims.split(","))
                for flags in ({}, {"mask": True}, {"mask": True, "dropout": True}, {"causal": True}) for n in lengths if 256 <= n <= 4096]
    if part == "compiled":
        lengths = [n for n in lengths if n in (128, 512, 2048, 8192, 16384)]  # each is compiled anew
    return [problem_of(16, n, 8, 64, *PART[part]) for n in lengths]


def main():
    approximations.main()
    chosen = options.methods.split(";") if options.methods else None
    lengths = [int(n) for n in options.lengths.split(",")]
    names = [name for name in [*METHODS, *COMPILED] if chosen is None or name in chosen]
    exact = [name for name in names if (name in EXACT or name.startswith("attn")) and name not in COMPILED]
    in_part = {"plain": [name for name in names if name not in COMPILED], "compiled": [name for name in names if name in COMPILED],
               "mask": exact + [name for name in names if name in COMPILED and chosen is not None]}
    parts = options.parts.split(",")
    if options.attn:
        ahead = [problem for part in parts for problem in problems_of(part, lengths) if problem["n"] in (256, 512, 2048)]
        io_gpu.precompile(options.attn, [(descriptor(problem, sparse), "") for problem in ahead for sparse in (False, True) if not sparse or problem["b"] == 16],
                          options.arch, ("forward", "backward"))
        print(f"kernels compiled after {time.monotonic() - BEGIN:.0f} s")
    for part in parts:
        if out_of_time():
            break
        problems = problems_of(part, lengths)
        if part in PART:
            rows = table(part, in_part.get(part, exact), problems)
            ours = {line["problem"]["n"]: line for line in rows.get("attn", [])}
            for name, line in rows.items():
                ratios = [f"{one['problem']['label']}: {one['both'] / ours[one['problem']['n']]['both']:.2f}" for one in line
                          if "both" in one and "both" in ours.get(one["problem"]["n"], {})]
                if name != "attn" and ratios:
                    print(f"  {name}, both passes, times attn's: {'  '.join(ratios)}")
            for phase in ("forward", "backward", "both"):
                for name, numbers in paper.TABLES.get(paper.NUMBER.get((part, phase)), {}).items():
                    print(f"  the paper's table {paper.NUMBER[part, phase]}, {phase}, A100 40 GB: {name}: {numbers}")
            if part == "plain":
                for name, numbers in paper.TABLES[21].items():
                    print(f"  the paper's table 21, MB: {name}: {numbers}")
                for name, line in rows.items():
                    print(f"  memory of a step, MB: {name}: {' '.join('-' if 'bytes' not in one else format(one['bytes'] * 1e-6, '.0f') for one in line)}")
        elif part == "short":
            print(f"\nthe paper's table 7, ms: {paper.TABLES[7]}")
            table("short", [name for name in exact if name in ("attn", "SDPA cuDNN", "SDPA flash", "PyTorch eager")], problems)
        elif part == "heads":
            rows, of = {}, lambda problem: tuple(problem[x] for x in ("d", "mask", "dropout", "causal"))
            for (d, *flags), group in itertools.groupby(problems, of):
                words = [word for word, there in zip(("mask", "dropout", "causal"), flags) if there]
                print(f"\nd {d}{', ' if words else ''}{', '.join(words)}")
                table("heads", [name for name in exact if name in ("attn", "PyTorch eager", "SDPA cuDNN")], list(group), rows)
    print("\n" + "\n".join(RESULT.get("sentences", [])))
    print(f"\n{time.monotonic() - BEGIN:.0f} s")
    if WRONG:
        sys.exit("wrong:\n" + "\n".join(WRONG))


if __name__ == "__main__":
    main()
