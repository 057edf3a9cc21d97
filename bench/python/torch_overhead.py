"""What attn.torch costs before the work begins, beside the pattern that flash_attn uses, in one run.

  python bench/python/torch_overhead.py [--device cuda] [--json FILE]

Calls attend one query to one key. The pattern is an autograd.Function around two operators of
torch.library.custom_op, which do nothing but allocate what attention returns: what flash_attn costs
beside its kernels. Numbers are the least of many repeats, since other work on the machine only
adds; microseconds a call. On a GPU the calls are timed while the GPU is busy with something else, so
that what counts is the time until the call returns."""

import argparse

import measured
import torch

import attn
import attn.torch


@torch.library.custom_op("attn_bench::forward", mutates_args=())
def peer_forward(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, causal: bool,
                 left: int, right: int, softcap: float) -> tuple[torch.Tensor, torch.Tensor]:
    batch, n, heads, _ = q.shape
    return torch.empty_like(q), q.new_empty((batch, heads, n), dtype=torch.float32)


@peer_forward.register_fake
def _(q, k, v, scale, causal, left, right, softcap):
    batch, n, heads, _ = q.shape
    return torch.empty_like(q), q.new_empty((batch, heads, n), dtype=torch.float32)


@torch.library.custom_op("attn_bench::backward", mutates_args=("dq", "dk", "dv"))
def peer_backward(d_out: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor,
                  out: torch.Tensor, lse: torch.Tensor, dq: torch.Tensor, dk: torch.Tensor,
                  dv: torch.Tensor, scale: float, causal: bool) -> None:
    pass


@peer_backward.register_fake
def _(d_out, q, k, v, out, lse, dq, dk, dv, scale, causal):
    pass


class Peer(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, scale, causal, window, softcap):
        out, lse = torch.ops.attn_bench.forward(q, k, v, scale, causal, *window, softcap)
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.scale, ctx.causal = scale, causal
        return out

    @staticmethod
    def backward(ctx, d_out):
        q, k, v, out, lse = ctx.saved_tensors
        dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
        torch.ops.attn_bench.backward(d_out, q, k, v, out, lse, dq, dk, dv, ctx.scale, ctx.causal)
        return dq, dk, dv, None, None, None, None


def microseconds(call, device, number=100, repeat=150):
    """The least mean of `number` calls, on a GPU while it is busy."""

    def occupy():
        torch.cuda.synchronize()
        torch.cuda._sleep(20_000_000)  # longer than the calls take; the queue holds them

    return measured.microseconds(call, number, repeat, occupy if device == "cuda" else None)


def save(path, device, rows):
    measured.save(path, {"device": device, "torch": torch.__version__, "us": rows})


def measure(device):
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    q, k, v = (torch.randn(1, 1, 1, 64, device=device, dtype=dtype) for _ in range(3))
    leaves = [t.clone().requires_grad_() for t in (q, k, v)]
    gradient = torch.randn_like(q)
    head_first = [t.transpose(1, 2) for t in (q, k, v)]
    grad_first = [t.detach().transpose(1, 2).requires_grad_() for t in leaves]

    def peer(q, k, v):
        return Peer.apply(q, k, v, 0.125, True, (-1, -1), 0.0)

    def ours(q, k, v):
        return attn.torch.attention(q, k, v, causal=True)

    def sdpa(q, k, v):
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)

    def both(function, tensors, d_out):
        return lambda: torch.autograd.grad(function(*tensors), tensors, d_out)

    rows = {}
    d_first = gradient.transpose(1, 2)
    for name, function, plain, wanted, d_out in (
        ("attn.torch", ours, (q, k, v), leaves, gradient),
        ("the pattern of flash_attn", peer, (q, k, v), leaves, gradient),
        ("PyTorch's own", sdpa, head_first, grad_first, d_first),
    ):
        compiled = torch.compile(function, backend="aot_eager", fullgraph=True)
        number = 20 if device == "cuda" else 100

        def timed(call, number=number):
            for _ in range(3):
                call()
            return microseconds(call, device, number)

        with torch.no_grad():
            inference = timed(lambda f=function, t=plain: f(*t))
            inference_compiled = timed(lambda f=compiled, t=plain: f(*t))
        rows[name] = {
            "inference": inference,
            "forward": timed(lambda f=function, t=wanted: f(*t)),
            "forward, backward": timed(both(function, wanted, d_out)),
            "inference, compiled": inference_compiled,
            "forward, backward, compiled": timed(both(compiled, wanted, d_out)),
        }
        torch._dynamo.reset()
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--json")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = measure(options.device)
    for name, numbers in rows.items():
        for case, value in numbers.items():
            print(f"{name:28} {case:30} {value:8.2f}")
    save(options.json, options.device, rows)


if __name__ == "__main__":
    main()
