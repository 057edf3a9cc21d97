"""attn.torch with a trained bias beside PyTorch's own ways, forward and backward, on one GPU, bf16.

  python bench/python/torch_bias.py [--json FILE] [--seconds 60]

A bias [1 or batch, heads, n, n] of bf16 is added to the scores and has a gradient, as relative position biases and pair
biases have. Peers: SDPA by its memory-efficient kernel and by plain products ("math"), and compiled FlexAttention, whose
score function reads the bias; cuDNN and FlashAttention have no gradient of a bias. "plain" is attn.torch without a bias.
Gradients are compared with those of plain products first. Numbers are medians of CUDA events in milliseconds, in random
order, five rounds."""

import argparse
import random
import statistics
import time

import measured
import torch
import torch._functorch.config
import torch.nn.functional as functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import flex_attention

import attn.torch

# A graph that gives its buffers away has gradients once, and here they are timed again and again.
torch._functorch.config.donated_buffer = False

# batch, heads, n, head size, batch of the bias
SHAPES = ((4, 16, 2048, 64, 1), (8, 16, 1024, 64, 1), (2, 16, 4096, 128, 1), (2, 8, 2048, 128, 2), (512, 8, 128, 32, 1))
ROUNDS = 5


def sdpa(backend):
    def attend(q, k, v, bias):
        with sdpa_kernel(backend):
            return functional.scaled_dot_product_attention(q, k, v, attn_mask=bias.expand(q.shape[0], -1, -1, -1))

    return attend


def flex(q, k, v, bias):
    last = bias.shape[0] - 1
    return flex_attention(
        q, k, v, score_mod=lambda s, b, h, i, j: s + bias[b if last else 0, h, i, j])


def ours(q, k, v, bias):
    return attn.torch.attention(q, k, v, bias=bias, layout="bhsd")


def plain(q, k, v, bias):
    return attn.torch.attention(q, k, v, layout="bhsd")


def milliseconds(call):
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    time.sleep(0.02)
    start.record()
    call()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end)


def difference(got, expected):
    """Of the worst gradient, as a share of its norm."""
    return max(((a - b).double().norm() / b.double().norm()).item() for a, b in zip(got, expected, strict=True))


def row_of(shape, ways):
    batch, heads, n, d, of_bias = shape
    q, k, v, d_out = (torch.randn(batch, heads, n, d, device="cuda", dtype=torch.bfloat16) for _ in range(4))
    bias = torch.randn(of_bias, heads, n, n, device="cuda", dtype=torch.bfloat16)
    inputs = [x.requires_grad_() for x in (q, k, v, bias)]
    row = {"shape": shape, "forward": {}, "backward": {}, "difference": {}}
    passes, expected = {}, None
    for name, attend in ways.items():
        of = inputs[:3] if name == "plain" else inputs
        try:
            out = attend(*inputs)
            gradients = torch.autograd.grad(out, of, d_out, retain_graph=True)
        except Exception as error:  # refuses, or does not fit
            row["difference"][name] = f"{type(error).__name__}: {str(error).splitlines()[0][:80]}"
            continue
        if name == "math":
            expected = gradients
        if name != "plain" and expected is not None:
            row["difference"][name] = difference(gradients, expected)
        passes[name] = (lambda attend=attend: attend(*inputs),
                        lambda out=out, of=of: torch.autograd.grad(out, of, d_out, retain_graph=True))
    times = {(name, i): [] for name in passes for i in range(2)}
    for _ in range(ROUNDS):
        for name, i in random.sample(list(times), len(times)):
            times[name, i].append(milliseconds(passes[name][i]))
    for (name, i), taken in times.items():
        row["backward" if i else "forward"][name] = statistics.median(taken)
    return row


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--json", default="")
    arguments.add_argument("--seconds", type=float, default=60, help="no shape is begun after that")
    options = arguments.parse_args()
    begin = time.time()
    torch.manual_seed(1)
    ways = {"math": sdpa(SDPBackend.MATH), "efficient": sdpa(SDPBackend.EFFICIENT_ATTENTION),
            "flex": torch.compile(flex), "attn": ours, "plain": plain}
    rows = []
    print("| batch, heads, n, d, batch of the bias | pass | " + " | ".join(ways) + " |")
    print("|---" * (2 + len(ways)) + "|")
    for shape in SHAPES:
        if time.time() - begin > options.seconds:
            break
        rows.append(row_of(shape, ways))
        for name in ("forward", "backward"):
            cells = [f"{rows[-1][name][way]:.3f}" if way in rows[-1][name] else "" for way in ways]
            print(f"| {', '.join(map(str, shape))} | {name} | " + " | ".join(cells) + " |", flush=True)
        print("  of plain products:", rows[-1]["difference"], flush=True)
        torch.cuda.empty_cache()
    wrong = [row["shape"] for row in rows if not row["difference"].get("attn", 1.0) < 0.02]
    measured.save(options.json, {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "rows": rows})
    if wrong:
        raise SystemExit(f"wrong: {wrong}")


if __name__ == "__main__":
    main()
