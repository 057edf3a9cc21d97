"""Kernel regression (examples/kernel_regression.cpp, normalised) beside PyTorch the way KeOps does it: chunks of queries, no n x n matrix kept.

  python3 bench/papers/kernel_regression.py --attn build/attn --n 1024,4096,8192 --threads 1 --json build/kernel_regression.json

The example's problem on both sides: samples k with values v, queries q, a Gaussian kernel of bandwidth h, so the score is q.k / h^2 - |q|^2 / 2 h^2 -
|k|^2 / 2 h^2, and gradients by q and k go through the squares as well. attn: `attn run`, which reads both squares as buffers and returns their gradients,
which are added to dQ and dK here; PyTorch makes the squares of a chunk within it, and recomputes chunks backward. Estimate and gradients of both are
compared with |q - k|^2 in fp64. Milliseconds of the passes, on --threads threads or a GPU: the least of all calls of --rounds rounds in which both sides
take turns, as others may use the machine; attn's leave out the squares of n numbers. Needs PyTorch."""
import argparse, json, os, subprocess, sys, tempfile, time

import torch
from torch.utils.checkpoint import checkpoint

arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
arguments.add_argument("--attn", default="build/attn")
arguments.add_argument("--n", type=lambda text: [int(n) for n in text.split(",")], default=[4096], help="of queries and of samples, separated by commas")
arguments.add_argument("--d", type=int, default=3)
arguments.add_argument("--out-dim", type=int, default=2, help="of the values")
arguments.add_argument("--bandwidth", type=float, default=0.4)
arguments.add_argument("--chunk", type=int, default=512)
arguments.add_argument("--threads", type=int, default=2)
arguments.add_argument("--seconds", type=float, default=1, help="of timing attn, each pass and round")
arguments.add_argument("--rounds", type=int, default=3)
arguments.add_argument("--json", default="", help="write date, machine, command and results here")
arguments.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
options = arguments.parse_args()
torch.set_num_threads(options.threads)
INVERSE = options.bandwidth ** -2


def write(path, tensors):
    """The safetensors format: u64 length, JSON header, bytes."""
    header, data = {}, b""
    for name, tensor in tensors.items():
        raw = bytes(tensor.detach().cpu().contiguous().view(torch.uint8).flatten().tolist())
        header[name] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text + data)


def read(path):
    with open(path, "rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        data = bytearray(file.read())
    return {name: torch.frombuffer(data[slice(*entry["data_offsets"])], dtype=torch.float32).view(entry["shape"]) for name, entry in header.items()}


def half_square(x):
    return x.square().sum(-1) * (0.5 * INVERSE)


class Attn:
    """The problem in a file, for `attn run`."""

    def __init__(self, folder, q, k, v, given):
        self.source, self.results, self.q, self.k = os.path.join(folder, "in.safetensors"), os.path.join(folder, "out.safetensors"), q.cpu(), k.cpu()
        write(self.source, {**{name: x[:, None, :] for name, x in zip(("q", "k", "v", "d_o"), (q, k, v, given))}, "a": half_square(q), "b": half_square(k)})

    def __call__(self):
        """What the command reports: times of both passes, and where and when they were taken."""
        where = ["--device", "cuda"] if options.device == "cuda" else ["--threads", str(options.threads)]
        done = subprocess.run([options.attn, "run", "--input", self.source, "--scale", repr(INVERSE), "--score", "score-a[query]-b[key]", "--buffer", "a=a",
                               "--buffer", "b=b", "--backward", "--output", self.results, "--seconds", str(options.seconds), "--json", "-", *where],
                              check=True, text=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        return json.loads(done.stdout)

    def answers(self):
        """The estimate, dq, dk and dv, [n, ...], of the last call."""
        r = {name: x.reshape(len(self.q), -1) for name, x in read(self.results).items()}
        # d (|x|^2 / 2 h^2) / d x = x / h^2
        return r["o"], r["dq"] + INVERSE * r["da"] * self.q, r["dk"] + INVERSE * r["db"] * self.k, r["dv"]


def chunk_of(q, k, v):
    return torch.softmax(INVERSE * (q @ k.T) - half_square(q)[:, None] - half_square(k), -1) @ v


def chunked(q, k, v):
    return torch.cat([checkpoint(chunk_of, q[i:i + options.chunk], k, v, use_reentrant=False) for i in range(0, len(q), options.chunk)])


def exact(q, k, v, given):
    """By the definition, in fp64 and in chunks: the estimate and its gradients."""
    leaves = [x.detach().double().requires_grad_() for x in (q, k, v)]
    kernel = lambda q, k, v: torch.softmax(-0.5 * INVERSE * (q[:, None, :] - k[None, :, :]).square().sum(-1), -1) @ v
    o = torch.cat([checkpoint(kernel, leaves[0][i:i + 256], *leaves[1:], use_reentrant=False) for i in range(0, len(q), 256)])
    return [x.detach().cpu() for x in (o, *torch.autograd.grad(o, leaves, given.double()))]


def compare(who, results, right):
    """Ends the program where a result errs by more than the score's own error, as in the example: terms of up to some 60 in f32."""
    for what, got, e in zip(("estimate", "gradient by q", "gradient by k", "gradient by v"), results, right):
        error = ((got.detach().cpu().double() - e).abs().max() / e.abs().max()).item()
        if not error < 2e-5:
            sys.exit(f"{who}: the {what} errs by {error:.1e} of its largest number, so nothing is timed")


def milliseconds(call):
    """The least of three."""
    times = []
    for _ in range(3):
        if options.device == "cuda":
            torch.cuda.synchronize()
        begin = time.perf_counter()
        call()
        if options.device == "cuda":
            torch.cuda.synchronize()
        times.append((time.perf_counter() - begin) * 1e3)
    return min(times)


def compared(n):
    """A row of the results for n queries and samples, and the last report of attn."""
    draw = lambda width: torch.randn(n, width, device=options.device)
    q, k, v, given = draw(options.d), draw(options.d), draw(options.out_dim), draw(options.out_dim)
    right = exact(q, k, v, given)
    leaves = [x.detach().requires_grad_() for x in (q, k, v)]

    def step():
        o = chunked(*leaves)
        return o, *torch.autograd.grad(o, leaves, given)

    compare("PyTorch in chunks", step(), right)
    row = {"n": n, "d": options.d, "out_dim": options.out_dim, "bandwidth": options.bandwidth}
    with tempfile.TemporaryDirectory() as folder:
        ours = Attn(folder, q, k, v, given)
        for _ in range(options.rounds):
            report = ours()
            compare("attn", ours.answers(), right)
            times = {f"attn_{phase['phase']}_ms": phase["seconds_minimum"] * 1e3 for phase in report["results"][0]["phases"]}
            with torch.no_grad():
                times["torch_forward_ms"] = milliseconds(lambda: chunked(q, k, v))
            times["torch_both_ms"] = milliseconds(step)
            row |= {what: min(ms, row.get(what, ms)) for what, ms in times.items()}
    forward, both = row["torch_forward_ms"], row["torch_both_ms"]
    row |= {"forward_times": forward / row["attn_forward_ms"], "both_times": both / (row["attn_forward_ms"] + row["attn_backward_ms"])}
    print(f"n {n}, d {options.d}, h {options.bandwidth}, {options.device}, ms: attn forward {row['attn_forward_ms']:.2f}, backward {row['attn_backward_ms']:.2f}; PyTorch in chunks of "
          f"{options.chunk} forward {forward:.2f} ({row['forward_times']:.2f} times), forward and backward {both:.2f} ({row['both_times']:.2f} times)", flush=True)
    return row, report


def main():
    torch.manual_seed(1)
    results = [compared(n) for n in options.n]
    if options.json:
        report = results[-1][1]
        where = {key: report[key] for key in ("date", "commit", "machine")}
        with open(options.json, "w") as file:
            json.dump({"command": " ".join(["python3", *sys.argv]), **where, "torch": torch.__version__, "threads": options.threads, "device": options.device,
                       "chunk": options.chunk, "results": [row for row, _ in results]}, file, indent=1)
            file.write("\n")


if __name__ == "__main__":
    main()
