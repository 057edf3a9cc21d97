"""Causal attention of one sequence over the GPUs of a host, forward with backward, as others do it, in bf16. Needs PyTorch
with NCCL.

  python3 bench/gpu/ranks_peers.py RANKS NxHQxHKxD... [--rounds N]

The peers: PyTorch's context_parallel with both ways of rotating K and V; a zigzag ring of cuDNN calls whose results are
merged, dK and dV sent home in f32; all-to-all by heads around one cuDNN call (Ulysses). O, dQ, dK and dV are compared with one
GPU's before anything is timed. In shuffled order; a line for each problem: ms of the slowest rank, medians of forward with
backward between two waits for the GPU; "one" is cuDNN's on one GPU."""
import argparse, os, random, statistics, time, warnings

import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

aten = torch.ops.aten


def sdpa(q, k, v):
    """Of [b, h, n, d]; GQA without copies of K and V where the backend takes it."""
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=q.shape[1] != k.shape[1])


def sdpa_expanded(q, k, v):
    group = q.shape[1] // k.shape[1]
    return sdpa(q, k.repeat_interleave(group, 1), v.repeat_interleave(group, 1))


def autograd_run(q, k, v, d_o, function):
    leaves = [t.detach().requires_grad_() for t in (q, k, v)]
    o = function(*leaves)
    return (o.detach(), *torch.autograd.grad(o, leaves, d_o))


def rows_zigzag(n, rank, ranks):
    part = n // (2 * ranks)
    last = 2 * ranks - 1 - rank
    return torch.cat([torch.arange(rank * part, (rank + 1) * part), torch.arange(last * part, (last + 1) * part)])


class Cudnn:
    """One call of cuDNN and its backward pass, of [b, h, n, d]."""

    @staticmethod
    def forward(q, k, v, causal):
        out = aten._scaled_dot_product_cudnn_attention(q, k, v, None, True, 0.0, causal, False)
        return out[0], out[1], out[2:8]

    @staticmethod
    def backward(d_o, q, k, v, o, lse, rest, causal):
        cum_q, cum_k, max_q, max_k, seed, offset = rest
        return aten._scaled_dot_product_cudnn_attention_backward(
            d_o, q, k, v, o, lse, seed, offset, None, cum_q, cum_k, max_q, max_k, 0.0, causal)


class Ring:
    """K and V of the next rank come while this one's are worked on."""

    def __init__(self, rank, ranks):
        self.rank, self.ranks = rank, ranks

    def exchange(self, tensors, step):
        """Sends to rank + step, gets from rank - step: (what comes, requests)."""
        to, source = (self.rank + step) % self.ranks, (self.rank - step) % self.ranks
        got = [torch.empty_like(t) for t in tensors]
        ops = [dist.P2POp(dist.isend, t, to) for t in tensors] + [dist.P2POp(dist.irecv, t, source) for t in got]
        return got, dist.batch_isend_irecv(ops)

    def steps(self, k, v):
        """(step, rows of Q, K, V) of each step, the own one first; the next are under way meanwhile."""
        current, half = (k, v), k.shape[2] // 2
        for step in range(self.ranks):
            if step + 1 < self.ranks:
                coming, requests = self.exchange([k, v], step + 1)
            source = (self.rank - step) % self.ranks
            k_now, v_now = current
            if step == 0:
                yield step, slice(None), slice(None), k_now, v_now
            elif source < self.rank:
                yield step, slice(None), slice(0, half), k_now, v_now
            else:
                yield step, slice(half, None), slice(None), k_now, v_now
            if step + 1 < self.ranks:
                for request in requests:
                    request.wait()
                current = coming

    def __call__(self, q, k, v, d_o):
        o_sum = lse_sum = None
        rest_of = {}
        for step, of_q, of_k, k_now, v_now in self.steps(k, v):
            o, lse, rest = Cudnn.forward(q[:, :, of_q].contiguous(), k_now[:, :, of_k].contiguous(),
                                         v_now[:, :, of_k].contiguous(), step == 0)
            rest_of[step], shape = rest, lse.shape
            lse = lse.reshape(*o.shape[:3], 1)
            if step == 0:
                o_sum, lse_sum = o.float(), lse.clone()
                continue
            both = torch.logaddexp(lse_sum[:, :, of_q], lse)
            o_sum[:, :, of_q] = (o_sum[:, :, of_q] * torch.exp(lse_sum[:, :, of_q] - both)
                                 + o.float() * torch.exp(lse - both))
            lse_sum[:, :, of_q] = both
        o = o_sum.to(q.dtype)
        dq = torch.zeros_like(q, dtype=torch.float32)
        dk, dv = (torch.zeros_like(t, dtype=torch.float32) for t in (k, v))
        home = []
        for step, of_q, of_k, k_now, v_now in self.steps(k, v):
            lse = lse_sum[:, :, of_q].contiguous()
            lse = lse.reshape(*lse.shape[:3], *shape[3:])
            gradients = Cudnn.backward(d_o[:, :, of_q].contiguous(), q[:, :, of_q].contiguous(),
                                       k_now[:, :, of_k].contiguous(), v_now[:, :, of_k].contiguous(),
                                       o[:, :, of_q].contiguous(), lse, rest_of[step], step == 0)
            dq[:, :, of_q] += gradients[0]
            if step == 0:
                dk += gradients[1]
                dv += gradients[2]
                continue
            partial = [torch.zeros_like(t) for t in (dk, dv)]
            for to, gradient in zip(partial, gradients[1:]):
                to[:, :, of_k] = gradient
            home.append(self.exchange(partial, self.ranks - step))
        for (dk_got, dv_got), requests in home:
            for request in requests:
                request.wait()
            dk += dk_got
            dv += dv_got
        return o, dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype)


class ToHeads(torch.autograd.Function):
    """[1, n / ranks, h, d] of all heads -> [1, h / ranks, n, d]; backward the other way."""

    @staticmethod
    def forward(ctx, x):
        return to_heads(x)

    @staticmethod
    def backward(ctx, g):
        return to_rows(g)


class ToRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return to_rows(x)

    @staticmethod
    def backward(ctx, g):
        return to_heads(g)


def to_heads(x):
    ranks = dist.get_world_size()
    _, n, h, d = x.shape
    parts = x.view(n, ranks, h // ranks, d).transpose(0, 1).contiguous()
    got = torch.empty_like(parts)
    dist.all_to_all_single(got, parts)
    return got.view(1, n * ranks, h // ranks, d).transpose(1, 2)


def to_rows(x):
    ranks = dist.get_world_size()
    _, h, n, d = x.shape
    parts = x.transpose(1, 2).contiguous().view(n, h, d)  # rows of each rank in turn
    got = torch.empty_like(parts)
    dist.all_to_all_single(got, parts)
    return got.view(ranks, n // ranks, h, d).transpose(0, 1).reshape(1, n // ranks, h * ranks, d)


def ulysses(q, k, v):
    """Of [1, n / ranks, h, d]."""
    return ToRows.apply(sdpa(ToHeads.apply(q), ToHeads.apply(k), ToHeads.apply(v)))


class Problem:
    def __init__(self, rank, ranks, n, hq, hk, d):
        torch.manual_seed(3)
        self.rank, self.ranks = rank, ranks
        self.whole = [torch.randn(1, n, h, d, device="cuda", dtype=torch.bfloat16) for h in (hq, hk, hk, hq)]
        for t in self.whole:
            dist.broadcast(t, 0)
        self.whole = [t.transpose(1, 2).contiguous() for t in self.whole]  # [1, h, n, d]
        self.rows = rows_zigzag(n, rank, ranks).cuda()
        self.zigzag = [t[:, :, self.rows].contiguous() for t in self.whole]
        part = n // ranks
        self.own_rows = torch.arange(rank * part, (rank + 1) * part).cuda()
        self.own = [t[:, :, self.own_rows].transpose(1, 2).contiguous() for t in self.whole]
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            self.expected = autograd_run(*self.whole, sdpa)

    def context_parallel(self, method, body, function=sdpa):
        """body(run): within PyTorch's context, which shards the tensors it is given."""
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor.experimental import context_parallel
        from torch.distributed.tensor.experimental._attention import set_rotate_method
        set_rotate_method(method)
        buffers = [t.clone() for t in self.whole]
        mesh = init_device_mesh("cuda", (self.ranks,))
        with context_parallel(mesh, buffers=buffers, buffer_seq_dims=[2] * 4, no_restore_buffers=set(buffers)):
            with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
                return body(lambda: autograd_run(*buffers, function))

    def peers(self):
        """name -> (call(body), rows that a rank holds, whether [1, n, h, d])."""
        ring = Ring(self.rank, self.ranks)

        def with_cudnn(run):
            def call(body):
                with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
                    return body(run)
            return call
        return {
            "one": (with_cudnn(lambda: autograd_run(*self.whole, sdpa)), None, False),
            "cp allgather": (lambda body: self.context_parallel("allgather", body), self.rows, False),
            "cp alltoall": (lambda body: self.context_parallel("alltoall", body), self.rows, False),
            "cp allgather expanded": (lambda body: self.context_parallel("allgather", body, sdpa_expanded), self.rows, False),
            "cp alltoall expanded": (lambda body: self.context_parallel("alltoall", body, sdpa_expanded), self.rows, False),
            "ring": (lambda body: body(lambda: ring(*self.zigzag)), self.rows, False),
            "ulysses": (with_cudnn(lambda: autograd_run(*self.own, ulysses)), self.own_rows, True),
        }

    def apart(self, results, rows, rows_first):
        """The largest share by which a result is apart from one GPU's, on all ranks."""
        worst = 0.0
        for mine, whole in zip(results, self.expected):
            mine = mine.transpose(1, 2) if rows_first else mine
            expected = whole if rows is None else whole[:, :, rows]
            share = ((mine.float() - expected.float()).norm() / expected.float().norm()).item()
            worst = share if not share <= worst else worst
        return slowest(worst if worst == worst else 1e9)


def slowest(x):
    t = torch.tensor([x], device="cuda", dtype=torch.float64)
    dist.all_reduce(t, op=dist.ReduceOp.MAX)
    return t.item()


def timed(run):
    torch.cuda.synchronize()
    dist.barrier()
    torch.cuda.synchronize()
    start = time.perf_counter()
    run()
    torch.cuda.synchronize()
    return slowest(1e3 * (time.perf_counter() - start))


def row(rank, ranks, sizes, rounds):
    problem, times, refused = Problem(rank, ranks, *sizes), {}, {}
    calls = problem.peers()
    for name, (call, rows, rows_first) in calls.items():
        if name.endswith(" expanded") and name.removesuffix(" expanded") in times:
            continue  # copies of K and V for each query head, where it cannot go without
        failure = ""
        try:
            apart = call(lambda run: problem.apart(run(), rows, rows_first))
            if apart > 0.02:
                failure = f"WRONG by {apart:.3f}"
        except Exception as error:  # a peer that cannot is told, not timed
            failure = f"cannot: {str(error).splitlines()[0][:90]}"
        if slowest(float(bool(failure))) > 0:
            refused[name] = failure or "failed on another rank"
        else:
            times[name] = []
    order, shuffle = list(times), random.Random(5)
    for _ in range(rounds):
        shuffle.shuffle(order)
        for name in order:
            call = calls[name][0]
            times[name].append(call(lambda run: (run(), timed(run))[1]))
    if rank == 0:
        cells = [f"{name} {statistics.median(t):.3f}" for name, t in times.items()]
        cells += [f"{name} {failure}" for name, failure in refused.items()]
        print("peers", "x".join(map(str, sizes)), "|", " | ".join(cells), flush=True)


def work(rank, ranks, rows, rounds):
    warnings.simplefilter("ignore")
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=os.environ.get("MASTER_PORT", "29571"))
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", rank=rank, world_size=ranks, device_id=torch.device("cuda", rank))
    for sizes in rows:
        row(rank, ranks, sizes, rounds)
    dist.destroy_process_group()


if __name__ == "__main__":
    arguments = argparse.ArgumentParser()
    arguments.add_argument("ranks", type=int)
    arguments.add_argument("problems", nargs="+")
    arguments.add_argument("--rounds", type=int, default=9)
    options = arguments.parse_args()
    sizes = [tuple(map(int, text.split("x"))) for text in options.problems]
    multiprocessing.spawn(work, (options.ranks, sizes, options.rounds), nprocs=options.ranks)
