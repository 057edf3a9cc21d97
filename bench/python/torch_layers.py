"""Where the time of a call of attn.torch goes before its work begins: what each layer adds.

  python bench/python/torch_layers.py [--device cuda] [--json FILE]

Each line is the least mean of many short repeats, in microseconds; calls attend one query to one key.
On a GPU they are timed while it is busy, so that what counts is the time until the call returns. Lines
that begin with "floor" do what PyTorch does for any operator of that kind and compute nothing: they are
what no library can go below. "single-threaded" is torch.autograd.set_multithreading_enabled(False): a
backward pass of a GPU then runs in the calling thread, where else the engine hands it to another."""

import argparse

import torch
from torch_overhead import Peer, microseconds, save

import attn.torch
from attn import _attn
from attn.options import make_options


class Nothing(torch.autograd.Function):
    """What every autograd.Function costs that saves five tensors and makes one, and three gradients."""

    @staticmethod
    def forward(ctx, q, k, v, lse):
        out = torch.empty_like(q)
        ctx.save_for_backward(q, k, v, out, lse)
        return out

    @staticmethod
    def backward(ctx, d_out):
        q, k, v, _, _ = ctx.saved_tensors
        return torch.empty_like(q), torch.empty_like(k), torch.empty_like(v), None


def tensors_of(device):
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    return [torch.randn(1, 1, 1, 64, device=device, dtype=dtype) for _ in range(3)]


def eager_layers(device):
    """Name and function of each layer; those of "forward, backward" take the leaves' gradients."""
    q, k, v = tensors_of(device)
    leaves = [t.clone().requires_grad_() for t in (q, k, v)]
    d_out = torch.randn_like(q)
    made = make_options(causal=True)
    out, lse = _attn.forward(made, q, k, v, None, True)
    wanted = ("q", "k", "v")

    def gradients(function, inputs):
        return lambda: torch.autograd.grad(function(), inputs, d_out)

    def single(call):
        def run():
            with torch.autograd.set_multithreading_enabled(False):
                call()
        return run

    def ours():
        return attn.torch.attention(*leaves, causal=True)

    def peer():
        return Peer.apply(*leaves, 0.125, True, (-1, -1), 0.0)

    def sdpa():
        heads_first = [t.transpose(1, 2) for t in leaves]
        return torch.nn.functional.scaled_dot_product_attention(*heads_first).transpose(1, 2)

    if device == "cuda":
        yield "floor: one launch (torch.cuda._sleep(0))", lambda: torch.cuda._sleep(0)
    yield "floor: torch.empty_like", lambda: torch.empty_like(q)
    yield "options of the keywords", lambda: make_options(causal=True)
    yield "native forward, out given", lambda: _attn.forward(made, q, k, v, out, False, None, True)
    yield "native forward", lambda: _attn.forward(made, q, k, v, None, False, None, True)
    yield "native forward and lse", lambda: _attn.forward(made, q, k, v, None, True, None, True)
    yield "inference", lambda: attn.torch.attention(q, k, v, causal=True)
    yield "floor: forward of an autograd.Function", lambda: Nothing.apply(*leaves, lse)
    yield "forward, gradients recorded", ours
    yield "native backward", lambda: _attn.backward(
        made, d_out, q, k, v, out, lse, wanted, None, None, True)
    whole = {
        "floor: backward of a view in C++": gradients(lambda: leaves[0].view_as(q), leaves[:1]),
        "floor: an autograd.Function": gradients(lambda: Nothing.apply(*leaves, lse), leaves),
        "forward, backward": gradients(ours, leaves),
        "the pattern of flash_attn": gradients(peer, leaves),
        "PyTorch's own": gradients(sdpa, leaves),
    }
    for name, call in whole.items():
        yield name, call
        yield name + ", single-threaded", single(call)


CALLS = 8


def compiled_layers(device, backend):
    """What a further call costs within one compiled function: (9 calls - 1 call) / 8."""
    q, k, v = tensors_of(device)

    def ours(q):
        return attn.torch.attention(q, k, v, causal=True)

    def peer(q):
        return Peer.apply(q, k, v, 0.125, True, (-1, -1), 0.0)

    def sdpa(q):
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)

    for name, function in (("attn.torch", ours), ("pattern", peer), ("PyTorch's own", sdpa)):
        times = []
        for count in (1, 1 + CALLS):
            torch._dynamo.reset()

            def several(q, count=count, function=function):
                for _ in range(count):
                    q = function(q)
                return q

            compiled = torch.compile(several, backend=backend, fullgraph=True)
            with torch.no_grad():
                times.append(timed(lambda f=compiled: f(q), device))
        yield f"{name}: one call", times[0]
        yield f"{name}: each further call", (times[1] - times[0]) / CALLS


def timed(call, device):
    for _ in range(3):
        call()
    number, repeat = (20, 50) if device == "cuda" else (50, 200)
    return microseconds(call, device, number, repeat)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--backends", default="aot_eager,inductor")
    parser.add_argument("--json")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = {}

    def show(name, number):
        rows[name] = round(number, 2)
        print(f"{name:58} {number:8.2f}", flush=True)
        save(options.json, options.device, rows)  # a limit of time may end it

    for name, call in eager_layers(options.device):
        show(name, timed(call, options.device))
    for backend in filter(None, options.backends.split(",")):
        for name, number in compiled_layers(options.device, backend):
            show(f"{backend}: {name}", number)


if __name__ == "__main__":
    main()
