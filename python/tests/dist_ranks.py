"""What test_dist.py runs in processes of a gloo group: each compares its share with one process."""

from __future__ import annotations

import os
from typing import Any

import torch
import torch.distributed as group

import attn
import attn.dist
import attn.torch


def spawn(size: int, folder: Any, work: Any, backend: str = "gloo") -> None:
    """Runs work(rank, size) in so many processes of a group; raises what one of them raises."""
    torch.multiprocessing.spawn(_run, args=(size, str(folder), work, backend), nprocs=size)


def _run(rank: int, size: int, folder: str, work: Any, backend: str) -> None:
    torch.set_num_threads(1)
    attn.set_num_threads(1)
    if "nccl" in backend:
        torch.cuda.set_device(rank)
    store = f"file://{folder}/{size}"
    group.init_process_group(backend, init_method=store, rank=rank, world_size=size)
    torch.manual_seed(3)  # the same tensors everywhere
    work(rank, size)
    group.destroy_process_group()


def _cases() -> Any:
    """Names, shapes of q, k and v, dtype, and options; those that are trained by name."""
    dense, rows = ((2, 200, 4, 32), (2, 200, 2, 32), (2, 200, 2, 32)), 200
    cu_seqlens = torch.tensor([0, 9, 9, 100, 150], dtype=torch.int32)
    packed = ((150, 4, 32), (150, 2, 32), (150, 2, 16))
    place = torch.randint(0, 7, (rows,)) > 0
    yield "causal", dense, torch.bfloat16, {"causal": True}, ()
    yield (
        "window",
        dense,
        torch.float32,
        {"window": (50, 0), "sink": torch.randn(4), "softcap": 20.0},
        ("sink",),
    )
    yield (
        "dropout",
        dense,
        torch.float32,
        {"causal": True, "dropout": 0.3, "rng": (7, 2**63 + 5)},
        (),
    )
    yield (
        "packed",
        packed,
        torch.float32,
        {"causal": True, "cu_seqlens_q": cu_seqlens, "cu_seqlens_k": cu_seqlens, "layout": "thd"},
        (),
    )
    yield "alibi", dense, torch.float32, {"causal": True, "alibi": torch.rand(4)}, ("alibi",)
    yield "bias", dense, torch.float32, {"bias": torch.randn(1, 4, 200, 200)}, ("bias",)
    yield (
        "mask",
        dense,
        torch.float32,
        {"mask": (place[:, None] & place[None, :]), "scale": 0.2},
        (),
    )
    yield (
        "function",
        dense,
        torch.float32,
        {"mask": lambda s: (s.key <= s.query) & (s.key % 3 != 1)},
        (),
    )
    heads_first = ((2, 4, 200, 32), (2, 2, 200, 32), (2, 2, 200, 32))
    yield "heads_first", heads_first, torch.float32, {"causal": True, "layout": "bhsd"}, ()
    yield (
        "lengths",
        ((1, 70, 2, 16), (1, 130, 2, 16), (1, 130, 2, 16)),
        torch.float64,
        {"causal": True, "seqused_k": torch.tensor([101])},
        (),
    )


def _near(name: str, ours: torch.Tensor, exact: torch.Tensor, dtype: torch.dtype) -> None:
    roundings = {torch.bfloat16: 2**-8, torch.float32: 2**-23, torch.float64: 2**-48}[dtype]
    ours, exact = ours.double(), exact.double()
    allowed = 16 * roundings * (exact.abs() + exact.abs().max())
    worst = ((ours - exact).abs() - allowed).max() if len(ours) else torch.tensor(-1.0)
    assert worst <= 0, f"{name}: {(ours - exact).abs().max()} apart"  # and no NaN


def agree_with_one_process(rank: int, size: int) -> None:
    for name, shapes, dtype, options, trained in _cases():
        whole = [torch.randn(shape).to(dtype) for shape in shapes]
        arrays = {key: options[key].clone().requires_grad_() for key in trained}
        plan = attn.dist.plan(*shapes, dtype=dtype, chunk=16, **options)
        assert sum(end - begin for r in range(size) for begin, end in plan.rows(r)) > 0
        q, k, v = (plan.shard(x, keys=i > 0).detach().requires_grad_() for i, x in enumerate(whole))
        out, lse, largest = attn.dist.attention(
            q, k, v, plan, return_lse=True, return_max_logit=True, **arrays
        )
        one_arrays = {key: options[key].clone().requires_grad_() for key in trained}
        one = [x.clone().requires_grad_() for x in whole]
        expected, expected_lse = attn.torch.attention(
            *one, return_lse=True, **{**options, **one_arrays}
        )
        # The fp64 reference of the same values.
        exact, exact_largest = attn.attention(
            *whole, **{**options, "backend": "reference", "return_max_logit": True}
        )
        _near(f"{name} o", out, plan.shard(exact), dtype)
        _near(f"{name} max_logit", largest, exact_largest, dtype)
        assert not largest.requires_grad
        d_out = torch.randn(expected.shape).to(dtype)
        d_lse = torch.randn(expected_lse.shape, dtype=expected_lse.dtype)
        d_lse[expected_lse.isinf()] = 0
        of_lse = plan.shard(d_lse, -1)
        wanted = [q, k, v, *arrays.values()]
        ours = torch.autograd.grad((out, lse), wanted, (plan.shard(d_out), of_lse))
        theirs = torch.autograd.grad(
            (expected, expected_lse), [*one, *one_arrays.values()], (d_out, d_lse)
        )
        for i, label in enumerate(["dq", "dk", "dv", *arrays]):
            share = plan.shard(theirs[i], keys=i > 0) if i < 3 else theirs[i]
            _near(f"{name} {label}", ours[i], share, dtype)
        _near(f"{name} unshard", plan.unshard(out.detach()), expected, dtype)
    weight = torch.ones(1, requires_grad=True)
    plan = attn.dist.plan((1, 64, 1, 8), (1, 64, 1, 8), dtype=torch.float32, chunk=16, causal=True)
    rows = plan.index().float()[None]
    plan.unshard(rows * weight).square().sum().backward()
    # Each process has used the whole: its gradient comes from all of them.
    assert weight.grad is not None
    assert weight.grad.item() == 2 * size * rows.square().sum().item()


def compile_together(rank: int, size: int) -> None:
    """Within a graph of torch.compile all is as without, bit for bit, and nothing is left out."""
    kept = []  # a compiled call needs its plan
    for name, shapes, dtype, options, trained in _cases():
        if name == "dropout":
            options = {**options, "rng": torch.tensor([7, 5])}
        plan = attn.dist.plan(*shapes, dtype=dtype, chunk=16, **options)
        kept.append(plan)

        def step(q: Any, k: Any, v: Any, arrays: dict[str, Any], plan: Any = plan) -> Any:
            results = attn.dist.attention(
                2 * q, k, v, plan, return_lse=True, return_max_logit=True, **arrays
            )
            return *results, plan.unshard(results[0]), plan.shard(plan.unshard(q))

        whole = [torch.randn(shape).to(dtype) for shape in shapes]
        arrays = {key: options[key].clone() for key in trained}
        if name == "dropout":
            arrays["rng"] = torch.tensor([11, 2**40])
        found = []
        torch._dynamo.reset()
        for run in (step, torch.compile(step, backend="aot_eager", fullgraph=True)):
            rows = [plan.shard(x, keys=i > 0).requires_grad_() for i, x in enumerate(whole)]
            given = {key: x.clone() for key, x in arrays.items()}
            wanted = [*rows, *(given[key].requires_grad_() for key in trained)]
            results = run(*rows, given)
            torch.manual_seed(4)
            loss = sum((x * torch.randn_like(x)).sum() for x in (results[0], *results[3:]))
            loss = loss + results[1].masked_fill(results[1].isinf(), 0).sum()
            found.append([*results, *torch.autograd.grad(loss, wanted)])
        for i, (plain, compiled) in enumerate(zip(*found, strict=True)):
            assert torch.equal(plain, compiled), f"{name} {i}"
            assert plain.dtype == compiled.dtype, f"{name} {i}"
    plan, (q, k) = kept[0], (torch.randn(2, 1, n, 32).bfloat16() for n in (4, 2))
    look = attn.dist.plan(*SHAPES, ranks=2, causal=True)
    for text, call in (
        ("accepted is one of a group", lambda: attn.dist.attention(q, k, k, look)),
        ("accepted within torch.compile", lambda: attn.dist.attention(q, k, k, plan, softcap=3.0)),
    ):
        _raises(Exception, text, torch.compile(call, backend="eager", fullgraph=True))


def _raises(kind: type[Exception], text: str, call: Any) -> None:
    try:
        call()
    except kind as error:
        found = str(error)
    else:
        found = "nothing"
    assert text in found, f"raised is {found!r}; expected is {text!r}"


SHAPES = (1, 96, 2, 8), (1, 96, 1, 8)


def refuse_together(rank: int, size: int) -> None:
    """What one process does differently is an error on all; the group goes on."""
    last = rank == size - 1
    _raises(
        attn.InvalidArgument,
        f"on rank {size - 1}",
        lambda: attn.dist.plan(*SHAPES, causal=not last, chunk=16),
    )
    plan = attn.dist.plan(*SHAPES, dtype=torch.float32, causal=True, chunk=16)
    q, k = (plan.shard(torch.randn(shape)) for shape in SHAPES)
    short = q[:, 1:] if last else q
    _raises(
        attn.InvalidArgument,
        f"rank {size - 1}: q is f32",
        lambda: attn.dist.attention(short, k, k, plan),
    )
    _raises(
        attn.InvalidArgument,
        "the plan is of 'causal'",
        lambda: attn.dist.attention(q, k, k, plan, softcap=3.0),
    )
    assert attn.dist.attention(q, k, k, plan).isfinite().all()
    _raises(
        attn.Unsupported,
        "accepted by attn.dist are Q, K, V and O of one dtype",
        lambda: attn.dist.plan(*SHAPES, dtype=torch.float32, type_k="f32", type_v="f32"),
    )
    look = attn.dist.plan(*SHAPES, ranks=4, causal=True)
    assert look.rank == -1
    _raises(attn.InvalidArgument, "accepted are 0 to 3", lambda: look.rows())
    _raises(
        attn.InvalidArgument,
        "accepted is one of a group",
        lambda: attn.dist.attention(q, k, k, look),
    )
    _raises(attn.InvalidArgument, "deal 'x'", lambda: attn.dist.plan(*SHAPES, ranks=2, deal="x"))
    _raises(
        attn.Unsupported,
        "batch_invariant",
        lambda: attn.dist.plan(*SHAPES, ranks=2, batch_invariant=True),
    )


def tell_of_silence(rank: int, size: int) -> None:
    """One process does not come until the others have given it up by their time-out."""
    options: dict[str, Any] = {"dtype": torch.float32, "causal": True, "chunk": 16}
    plan = attn.dist.plan(*SHAPES, **options)
    q, k = (plan.shard(torch.randn(shape)) for shape in SHAPES)
    if rank != size - 1:
        _raises(
            attn.Unavailable,
            f"rank {size - 1} did not come within 20 ms",
            lambda: attn.dist.plan(*SHAPES, timeout=0.02, **options),
        )
        _raises(attn.Unavailable, f"rank {size - 1}", lambda: attn.dist.attention(q, k, k, plan))
    group.barrier()


def tell_of_death(rank: int, size: int) -> None:
    """One process ends: the others are told."""
    plan = attn.dist.plan(*SHAPES, dtype=torch.float32, causal=True, chunk=16, timeout=600.0)
    q, k = (plan.shard(torch.randn(shape)) for shape in SHAPES)
    group.barrier()
    if rank == size - 1:
        os._exit(0)
    _raises(attn.Unavailable, "rank ", lambda: attn.dist.attention(q, k, k, plan))
    os._exit(0)  # the group's own end would wait for the one that is gone


def train_transformers(rank: int, size: int) -> None:
    """A model with windows and sinks, its sequence sharded, has the losses of one process."""
    from transformers import GptOssConfig, GptOssForCausalLM

    import attn.hf

    batch, seqlen, vocabulary = 2, 90, 99
    config = GptOssConfig(
        vocab_size=vocabulary,
        hidden_size=64,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        sliding_window=7,
        num_local_experts=4,
        num_experts_per_tok=2,
        max_position_embeddings=128,
    )
    tokens = torch.randint(0, vocabulary, (batch, seqlen + 1))
    losses: list[list[float]] = []
    for is_sharded in (False, True):
        torch.manual_seed(5)
        model = GptOssForCausalLM(config).float()
        model.set_attn_implementation("eager")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        inputs, labels = tokens[:, :-1], tokens[:, 1:]
        if is_sharded:
            plan = attn.hf.shard(model, batch, seqlen)
            assert plan.rows() != [(0, seqlen)]
            inputs, labels = plan.shard(inputs), plan.shard(labels)
        losses.append([])
        for _ in range(3):
            logits = model(input_ids=inputs, use_cache=False).logits.float()
            loss = torch.nn.functional.cross_entropy(
                logits.flatten(0, 1), labels.flatten(), reduction="sum"
            )
            loss = loss / (batch * seqlen)
            optimizer.zero_grad()
            loss.backward()
            total = loss.detach()
            if is_sharded:
                group.all_reduce(total)
                for parameter in model.parameters():
                    if parameter.grad is None:
                        parameter.grad = torch.zeros_like(parameter)
                    group.all_reduce(parameter.grad)
            optimizer.step()
            losses[-1].append(total.item())
    one, sharded = losses
    assert one[-1] < one[0] - 0.1
    for a, b in zip(one, sharded, strict=True):
        assert abs(a - b) <= 1e-5 * a, losses
    _raises(
        attn.Unsupported,
        "attention_mask is a tensor",
        lambda: model(input_ids=inputs, attention_mask=torch.ones_like(inputs)),
    )
    _raises(
        attn.InvalidArgument, "the rows of this process", lambda: model(input_ids=tokens[:, :-1])
    )


def agree_on_gpus(rank: int, size: int) -> None:
    """Shares on GPUs, with and without NCCL, beside the whole on one of them."""
    device = torch.device("cuda", rank)
    sink = torch.randn(4)
    for through_host in (False, True):
        where = group.new_group(backend="gloo") if through_host else None
        for options in ({"causal": True}, {"window": (50, 0), "sink": sink.to(device)}):
            shapes = (2, 500, 4, 64), (2, 500, 2, 64), (2, 500, 2, 64)
            whole = [torch.randn(shape).bfloat16().to(device) for shape in shapes]
            plan = attn.dist.plan(*shapes, device=device, group=where, chunk=64, **options)
            q, k, v = (plan.shard(x).detach().requires_grad_() for x in whole)
            one = [x.clone().requires_grad_() for x in whole]
            out = attn.dist.attention(q, k, v, plan)
            expected = attn.torch.attention(*one, **options)
            d_out = torch.randn(expected.shape).bfloat16().to(device)
            ours = torch.autograd.grad(out, (q, k, v), plan.shard(d_out))
            theirs = torch.autograd.grad(expected, one, d_out)
            for label, a, b in zip(
                ("o", "dq", "dk", "dv"), (out, *ours), (expected, *theirs), strict=True
            ):
                _near(label, a.cpu(), plan.shard(b).cpu(), torch.bfloat16)
            whole_out = plan.unshard(out.detach()) if where is None else None
            if whole_out is not None:
                _near("unshard", whole_out.cpu(), expected.cpu(), torch.bfloat16)
