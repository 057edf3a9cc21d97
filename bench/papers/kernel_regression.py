"""Kernel regression (examples/kernel_regression.cpp, normalised) beside PyTorch the way KeOps does it: chunks of queries, no n x n matrix kept.

  python3 bench/papers/kernel_regression.py --attn build/attn --n 4096

The example's problem on both sides: samples k with values v, queries q, a Gaussian kernel of bandwidth h, so the score is q.k / h^2 - |q|^2 / 2 h^2 -
|k|^2 / 2 h^2, and gradients by q and k go through the squares as well. attn: `attn run`, which reads both squares as buffers and returns their gradients,
which are added to dQ and dK here; PyTorch makes the squares of a chunk within it, and recomputes chunks backward. Estimate and gradients of both are
compared with |q - k|^2 in fp64. Milliseconds of the passes, on --threads threads or a GPU; attn's leave out the squares of n numbers. Needs PyTorch."""
import argparse, json, os, statistics, subprocess, sys, tempfile, time

import torch
from torch.utils.checkpoint import checkpoint

arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
arguments.add_argument("--attn", default="build/attn")
arguments.add_argument("--n", type=int, default=4096, help="of queries and of samples")
arguments.add_argument("--d", type=int, default=3)
arguments.add_argument("--out-dim", type=int, default=2, help="of the values")
arguments.add_argument("--bandwidth", type=float, default=0.4)
arguments.add_argument("--chunk", type=int, default=512)
arguments.add_argument("--threads", type=int, default=2)
arguments.add_argument("--seconds", type=float, default=1, help="of timing attn, each pass")
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


def by_attn(q, k, v, given):
    """Milliseconds of forward and backward, and the estimate, dq, dk and dv, [n, ...]."""
    with tempfile.TemporaryDirectory() as folder:
        source, results = os.path.join(folder, "in.safetensors"), os.path.join(folder, "out.safetensors")
        write(source, {**{name: x[:, None, :] for name, x in zip(("q", "k", "v", "d_o"), (q, k, v, given))}, "a": half_square(q), "b": half_square(k)})
        where = ["--device", "cuda"] if options.device == "cuda" else ["--threads", str(options.threads)]
        done = subprocess.run([options.attn, "run", "--input", source, "--scale", repr(INVERSE), "--score", "score-a[query]-b[key]", "--buffer", "a=a",
                               "--buffer", "b=b", "--backward", "--output", results, "--seconds", str(options.seconds), "--json", "-", *where],
                              check=True, text=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        phases = {row["phase"]: row["seconds_median"] * 1e3 for row in json.loads(done.stdout)["results"][0]["phases"]}
        r = {name: x.reshape(options.n, -1) for name, x in read(results).items()}
    # d (|x|^2 / 2 h^2) / d x = x / h^2
    dq, dk = r["dq"] + INVERSE * r["da"] * q.cpu(), r["dk"] + INVERSE * r["db"] * k.cpu()
    return phases["forward"], phases["backward"], (r["o"], dq, dk, r["dv"])


def chunk_of(q, k, v):
    return torch.softmax(INVERSE * (q @ k.T) - half_square(q)[:, None] - half_square(k), -1) @ v


def chunked(q, k, v):
    return torch.cat([checkpoint(chunk_of, q[i:i + options.chunk], k, v, use_reentrant=False) for i in range(0, options.n, options.chunk)])


def exact(q, k, v, given):
    """By the definition, in fp64 and in chunks: the estimate and its gradients."""
    leaves = [x.detach().double().requires_grad_() for x in (q, k, v)]
    kernel = lambda q, k, v: torch.softmax(-0.5 * INVERSE * (q[:, None, :] - k[None, :, :]).square().sum(-1), -1) @ v
    o = torch.cat([checkpoint(kernel, leaves[0][i:i + 256], *leaves[1:], use_reentrant=False) for i in range(0, options.n, 256)])
    return [x.detach().cpu() for x in (o, *torch.autograd.grad(o, leaves, given.double()))]


def compare(who, results, right):
    """Ends the program where a result errs by more than the score's own error, as in the example: terms of up to some 60 in f32."""
    for what, got, e in zip(("estimate", "gradient by q", "gradient by k", "gradient by v"), results, right):
        error = ((got.detach().cpu().double() - e).abs().max() / e.abs().max()).item()
        if not error < 2e-5:
            sys.exit(f"{who}: the {what} errs by {error:.1e} of its largest number, so nothing is timed")


def milliseconds(call):
    times = []
    for _ in range(7):
        if options.device == "cuda":
            torch.cuda.synchronize()
        begin = time.perf_counter()
        call()
        if options.device == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - begin)
    return statistics.median(times[1:]) * 1e3


def main():
    torch.manual_seed(1)
    draw = lambda width: torch.randn(options.n, width, device=options.device)
    q, k, v, given = draw(options.d), draw(options.d), draw(options.out_dim), draw(options.out_dim)
    right = exact(q, k, v, given)
    forward_ms, backward_ms, ours = by_attn(q, k, v, given)
    compare("attn", ours, right)
    with torch.no_grad():
        forward = milliseconds(lambda: chunked(q, k, v))
    leaves = [x.requires_grad_() for x in (q, k, v)]

    def step():
        o = chunked(*leaves)
        return o, *torch.autograd.grad(o, leaves, given)
    compare("PyTorch in chunks", step(), right)
    both = milliseconds(step)
    print(f"n {options.n}, d {options.d}, h {options.bandwidth}, {options.device}, ms: attn forward {forward_ms:.2f}, backward {backward_ms:.2f}; PyTorch in chunks of "
          f"{options.chunk} forward {forward:.2f} ({forward / forward_ms:.2f} times), forward and backward {both:.2f} ({both / (forward_ms + backward_ms):.2f} times)")


if __name__ == "__main__":
    main()
