"""One sequence over the processes of a group of torch.distributed, with every mask and score.

import attn.dist
plan = attn.dist.plan((1, 65536, 32, 128), (1, 65536, 8, 128), dtype=torch.bfloat16, causal=True)
q, k, v = plan.shard(q), plan.shard(k), plan.shard(v)     # or make them of plan.shard(tokens)
out = attn.dist.attention(q, k, v, plan)                  # of this process's rows; differentiable

Every process of the group makes the plan and calls attention, in one order. What goes wrong on one
is an attn.Error on all of them, which names the process by its rank in the group. docs/scale-out.md
explains how rows are dealt and what is sent.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NoReturn

import torch
import torch.distributed as _group
from torch import Tensor

from . import _attn
from .errors import InvalidArgument, Unavailable
from .operations import asked_for, returned_too
from .options import make_options, rng_state
from .torch.compiler import disable

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .types import Options

__all__ = ["Plan", "attention", "plan"]

_DTYPES = {
    torch.float32: "f32",
    torch.bfloat16: "bf16",
    torch.float16: "f16",
    torch.float64: "f64",
}


class _OfGpu:
    """Memory of a GPU as PyTorch reads it."""

    def __init__(self, address: int, size: int):
        self.__cuda_array_interface__ = {
            "shape": (size,),
            "typestr": "|u1",
            "data": (address, False),
            "version": 3,
        }


class _Messages:
    """Carries messages between the processes of a group, on communicators of its own.

    Each message has a head, which says whether its sender failed, and why.
    """

    HEAD = 512
    TAG_HEAD, TAG_BODY = 1, 2

    def __init__(self, group: Any, on_gpu: bool):
        self.ranks = _group.get_process_group_ranks(group)
        self.rank = _group.get_rank(group)
        self.size = len(self.ranks)
        self.failure = ""
        self.kept: list[Any] = []  # what may be under way when the group failed
        self.host = self._new_group("gloo")
        self.carries_gpu = on_gpu and "nccl" in _group.get_backend_config(group)
        self.device = self._new_group("nccl") if self.carries_gpu else None

    def _new_group(self, backend: str) -> Any:
        return _group.new_group(self.ranks, backend=backend, use_local_synchronization=True)

    def exchange(self, sends: list[Any], receives: list[Any], seconds: float) -> None:
        """sends, receives: (rank, memory), of a CPU or (device, address, bytes) of a GPU."""
        if self.failure:
            raise Unavailable(self.failure)
        deadline = time.monotonic() + seconds
        sent = []
        for to, memory in sends:
            head = torch.zeros(self.HEAD, dtype=torch.uint8)
            sent.append((to, self._start(_group.isend, head, to, self.TAG_HEAD)))
            if not isinstance(memory, tuple) and len(memory):
                body = torch.frombuffer(bytearray(memory), dtype=torch.uint8)
                sent.append((to, self._start(_group.isend, body, to, self.TAG_BODY)))
        heads, bodies = [], []
        for source, memory in receives:
            head = torch.empty(self.HEAD, dtype=torch.uint8)
            work = self._start(_group.irecv, head, source, self.TAG_HEAD)
            heads.append((source, work, head))
            if not isinstance(memory, tuple) and len(memory):
                body = torch.empty(len(memory), dtype=torch.uint8)
                work = self._start(_group.irecv, body, source, self.TAG_BODY)
                bodies.append((source, work, body, memory))
        for source, work, head in heads:
            self._wait(source, work, deadline, seconds)
            if head[0]:
                self.failure = bytes(head[1:].tolist()).rstrip(b"\0").decode(errors="replace")
                raise Unavailable(self.failure)
        for source, work, body, memory in bodies:
            self._wait(source, work, deadline, seconds)
            memory[:] = body.numpy().data
        for to, work in sent:
            self._wait(to, work, deadline, seconds)
        self._exchange_on_gpu(sends, receives)
        self.kept.clear()

    def _exchange_on_gpu(self, sends: list[Any], receives: list[Any]) -> None:
        operations = []
        for operation, messages in ((_group.isend, sends), (_group.irecv, receives)):
            for rank, memory in messages:
                if isinstance(memory, tuple) and memory[2]:
                    index, address, size = memory
                    tensor = torch.as_tensor(_OfGpu(address, size), device=f"cuda:{index}")
                    operations.append(
                        _group.P2POp(operation, tensor, self.ranks[rank], self.device)
                    )
        if not operations:
            return
        for work in _group.batch_isend_irecv(operations):
            work.wait()
        torch.cuda.current_stream(operations[0].tensor.device).synchronize()

    def fail(self, cause: str) -> None:
        """Tells the others, who wait for a message of this process."""
        if not self.failure:
            self.failure = cause
        text = cause.encode()[: self.HEAD - 2]
        head = torch.zeros(self.HEAD, dtype=torch.uint8)
        head[: 1 + len(text)] = torch.tensor([1, *text], dtype=torch.uint8)
        for rank in range(self.size):
            if rank != self.rank:
                self._start(_group.isend, head, rank, self.TAG_HEAD)

    def _start(self, operation: Any, tensor: Tensor, rank: int, tag: int) -> Any:
        try:
            work = operation(tensor, self.ranks[rank], self.host, tag)
        except RuntimeError as error:
            self._refuse(f"rank {rank} cannot be reached: {_first_line(error)}")
        self.kept.append((tensor, work))
        return work

    def _wait(self, rank: int, work: Any, deadline: float, seconds: float) -> None:
        left = max(deadline - time.monotonic(), 0.001)
        try:
            work.wait(timedelta(seconds=left))
        except RuntimeError as error:
            if time.monotonic() >= deadline:
                self._refuse(
                    f"rank {rank} did not come within {1e3 * seconds:.0f} ms, rank {self.rank} "
                    "waits for it"
                )
            self._refuse(f"rank {rank} has left the group: {_first_line(error)}")

    def _refuse(self, cause: str) -> NoReturn:
        self.failure = cause
        raise Unavailable(cause)


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0][:200]


# Of each group, by whether its processes have GPUs.
_known: dict[tuple[Any, bool], _Messages] = {}


def _messages(group: Any, on_gpu: bool) -> _Messages:
    if not _group.is_initialized():
        raise InvalidArgument(
            "torch.distributed has no process group; accepted is a plan made after "
            "torch.distributed.init_process_group"
        )
    if group is None:
        group = _group.group.WORLD
    if (group, on_gpu) not in _known:
        _known[group, on_gpu] = _Messages(group, on_gpu)
    return _known[group, on_gpu]


class Plan:
    """Who holds which rows of a sequence, and what is sent; `attn.dist.plan` makes it."""

    def __init__(
        self,
        made: _attn.DistPlan,
        options: Options,
        group: Any,
        messages: _Messages | None,
        on_gpu: bool,
    ):
        self._made = made
        self._options = options
        self._described = make_options(**options)
        self._group = group
        self._messages = messages
        self._on_gpu = on_gpu
        self._heads_first = self._described.heads_first
        self._packed = "cu_seqlens_q" in options

    @property
    def problem(self) -> str:
        """The descriptor of the whole problem."""
        return self._made.problem

    @property
    def rank(self) -> int:
        """This process's rank in the group; -1 of a plan to look at."""
        return self._made.rank

    @property
    def ranks(self) -> int:
        """How many processes there are."""
        return self._made.ranks

    @property
    def balance(self) -> float:
        """Mean over largest share of the visible pairs: 1 is an even deal."""
        return self._made.balance

    def rows(self, rank: int | None = None) -> list[tuple[int, int]]:
        """The rows [begin, end) of Q and of the output that a rank holds, ascending."""
        return self._made.rows(self._rank(rank))

    def keys(self, rank: int | None = None) -> list[tuple[int, int]]:
        """Those of K and V; where Q and K have the same rows, those of rows()."""
        return self._made.keys(self._rank(rank))

    def index(self, rank: int | None = None, *, keys: bool = False) -> Tensor:
        """The numbers of these rows, int64: positions, or what to index tokens and labels by."""
        rows = self.keys(rank) if keys else self.rows(rank)
        parts = [torch.arange(begin, end) for begin, end in rows]
        return torch.cat(parts) if parts else torch.empty(0, dtype=torch.int64)

    def shard(self, x: Tensor, dim: int | None = None, *, keys: bool = False) -> Tensor:
        """This process's rows of a tensor that has all of them.

        Args:
            x: Q, tokens, labels or anything else with a dimension of all rows.
            dim: That dimension; 1 of dense layouts ([batch, seqlen, ...]; 2 of tensors of rank 4
                where the plan's layout is "bhsd"), 0 of packed ones.
            keys: The rows of K and V, where these are others than those of Q.
        """
        return x.index_select(self._dim(x, dim), self.index(keys=keys).to(x.device))

    def unshard(self, x: Tensor, dim: int | None = None, *, keys: bool = False) -> Tensor:
        """The tensor of all rows, on every process, from each one's rows. Collective.

        Its gradient is summed over the processes, each of which has used the whole.
        """
        if self._messages is None:
            raise InvalidArgument(
                "the plan was made for a number of ranks; accepted is one of a group"
            )
        dim = self._dim(x, dim)
        result: Tensor = _Unshard.apply(x, self, dim, keys)  # pyright: ignore
        return result

    def _rank(self, rank: int | None) -> int:
        if rank is None and self.rank < 0:
            raise InvalidArgument(
                f"rank is None, and the plan is of no group; accepted are 0 to {self.ranks - 1}"
            )
        return self.rank if rank is None else rank

    def _dim(self, x: Tensor, dim: int | None) -> int:
        if dim is None:
            dim = 0 if self._packed else 2 if self._heads_first and x.dim() == 4 else 1
        return dim if dim >= 0 else dim + x.dim()

    def _with(self, options: Options) -> _attn.Options:
        merged = {**self._options, **options}
        made = make_options(**_with_state(merged, self._on_gpu))
        known = self._described
        if made.problem != known.problem or (made.seed, made.offset) != (known.seed, known.offset):
            raise InvalidArgument(
                f"the options describe {made.problem!r} with seed {made.seed} and offset "
                f"{made.offset}, the plan is of {known.problem!r} with {known.seed} and "
                f"{known.offset}; accepted are other arrays for the same problem, and on a CPU "
                "another rng"
            )
        return made

    def __str__(self) -> str:
        return str(self._made)


class _Unshard(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, plan: Plan, dim: int, keys: bool) -> Tensor:
        ctx.plan, ctx.dim, ctx.keys = plan, dim, keys
        indices = [plan.index(rank, keys=keys).to(x.device) for rank in range(plan.ranks)]
        most = max(len(index) for index in indices)
        padded = x.new_zeros([*x.shape[:dim], most, *x.shape[dim + 1 :]])
        padded.narrow(dim, 0, x.shape[dim]).copy_(x)
        parts = [torch.empty_like(padded) for _ in indices]
        _group.all_gather(parts, padded, group=plan._group)
        total = sum(len(index) for index in indices)
        whole = x.new_empty([*x.shape[:dim], total, *x.shape[dim + 1 :]])
        for index, part in zip(indices, parts, strict=True):
            whole.index_copy_(dim, index, part.narrow(dim, 0, len(index)))
        return whole

    @staticmethod
    def backward(ctx: Any, d_whole: Tensor) -> Any:
        d_whole = d_whole.contiguous().clone()
        _group.all_reduce(d_whole, group=ctx.plan._group)
        return ctx.plan.shard(d_whole, ctx.dim, keys=ctx.keys), None, None, None


def _with_state(options: dict[str, Any], on_gpu: bool) -> dict[str, Any]:
    """On a CPU dropout reads its seed and offset at each call, so that a plan serves all steps."""
    dropout, rng = options.get("dropout", 0.0), options.get("rng")
    if on_gpu or not dropout or isinstance(rng, Tensor):
        return options
    seed, offset, _ = rng_state(dropout, rng)
    words = [number - 2**64 if number >= 2**63 else number for number in (seed, offset)]
    return {**options, "rng": torch.tensor(words, dtype=torch.int64)}


def plan(
    q_shape: Sequence[int],
    k_shape: Sequence[int],
    v_shape: Sequence[int] | None = None,
    *,
    dtype: torch.dtype = torch.bfloat16,
    device: torch.device | str = "cpu",
    group: Any = None,
    ranks: int | None = None,
    deal: str = "by_area",
    chunk: int = 0,
    timeout: float = 60.0,
    **options: Unpack[Options],
) -> Plan:
    """How a problem is dealt to the processes of a group. Collective.

    Args:
        q_shape, k_shape, v_shape: Shapes of the whole tensors, of all rows, as attn.attention takes
            them; v is as k where it is left out.
        dtype: Of all three.
        device: Of this process's tensors.
        group: Of torch.distributed; the default group. attn sends on communicators of its own:
            gloo for memory of the CPU, NCCL for that of GPUs where the group has it, else through
            memory of the CPU.
        ranks: Instead of a group: a plan for so many, to look at.
        deal: "by_area", the fastest that is found, "contiguous", "zigzag" or "striped".
        chunk: Rows that stay together; 0: a choice.
        timeout: Seconds that a process waits for others in one step before it gives them up.
        **options: Those of attn.attention but for paged and listed keys, a shared prefix, types of
            K and V, and batch_invariant. Masks, biases and other arrays are those of the whole
            problem. On a GPU numbers given as rng are those of the plan; a tensor may change.

    Raises:
        attn.InvalidArgument: Also where a process comes with another problem.
        attn.Unavailable: A process left, failed or did not come in time.
    """
    device = torch.device(device)
    on_gpu = device.type == "cuda"
    if dtype not in _DTYPES:
        raise InvalidArgument(
            f"dtype is {dtype}; accepted are {', '.join(str(known) for known in _DTYPES)}"
        )
    for name in ("cu_seqlens_q", "cu_seqlens_k", "seqused_q", "seqused_k"):
        if isinstance(lengths := options.get(name), Tensor):
            options[name] = lengths.cpu()  # pyright: ignore
    kept: Any = _with_state(dict(options), on_gpu)
    made = make_options(**kept)
    shapes = [list(q_shape), list(k_shape), list(k_shape if v_shape is None else v_shape)]
    if made.heads_first:
        shapes = [[s[0], s[2], s[1], s[3]] if len(s) == 4 else s for s in shapes]
    messages = None if ranks is not None else _messages(group, on_gpu)
    gpu = (
        (device.index if device.index is not None else torch.cuda.current_device())
        if on_gpu
        else -1
    )
    dealt = _attn.dist_plan(
        made,
        shapes[0],
        shapes[1],
        shapes[2],
        _DTYPES[dtype],
        gpu,
        messages,
        0 if messages is None else messages.rank,
        ranks if messages is None else messages.size,
        messages is not None and messages.carries_gpu,
        deal,
        chunk,
        timeout,
    )
    return Plan(dealt, kept, group, messages, on_gpu)


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        plan: Plan,
        options: Any,
        names: list[str],
        return_max_logit: bool,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *tensors: Tensor,
    ) -> Any:
        out, lse, *max_logit = _attn.dist_forward(plan._made, options, q, k, v, return_max_logit)
        ctx.mark_non_differentiable(*max_logit)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.plan, ctx.options, ctx.names = plan, options, names
        ctx.dtypes = [tensor.dtype for tensor in tensors]
        return out, lse, *max_logit

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, d_out: Tensor | None, d_lse: Tensor | None, *_of_max_logit: None) -> Any:
        q, k, v, out, lse = ctx.saved_tensors
        names = ["q", "k", "v", *ctx.names]
        needed = ctx.needs_input_grad[4:]
        wanted = [name for name, is_needed in zip(names, needed, strict=True) if is_needed]
        d_out = torch.zeros_like(out) if d_out is None else d_out.contiguous()
        d_lse = None if d_lse is None else d_lse.contiguous()
        made = _attn.dist_backward(
            ctx.plan._made, ctx.options, d_out, q, k, v, out, lse, wanted, d_lse
        )
        found = dict(zip(wanted, made, strict=True))
        for name, dtype in zip(ctx.names, ctx.dtypes, strict=True):
            if name in found:
                found[name] = found[name].to(dtype)
        return (None, None, None, None, *map(found.get, names))


@disable
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    plan: Plan,
    *,
    return_lse: bool = False,
    return_max_logit: bool = False,
    **options: Unpack[Options],
) -> Any:
    """Attention of this process's rows to all keys that they see. Collective; differentiable.

    Args:
        q, k, v: This process's rows, plan.rows() of Q and plan.keys() of K and V, in the layout and
            dtype of the plan.
        plan: Made with the options of the call.
        return_lse: Return LSE as well.
        return_max_logit: Return the largest score of each head as well, last: [heads_q], over the
            rows of all processes, the same on each. All processes ask for it, or none.
        **options: Arrays that differ from those of the plan, such as a sink that is trained, and on
            a CPU the rng of a step; on a GPU where it is a tensor.

    Returns:
        `out` of this process's rows, or a tuple of it and what else is asked for:
        `(out, lse, max_logit)`. Gradients of q, k and v are complete; max_logit has none. Those of
        a sink, bias or ALiBi's slopes are summed over all processes, the same on each: they are not
        to be reduced once more.

    Raises:
        attn.Error: On every process, where one refused its arguments, failed or did not come.
    """
    if plan._messages is None:
        raise InvalidArgument("plan was made for a number of ranks; accepted is one of a group")
    asked = returned_too(return_lse, return_max_logit)
    made = plan._with(options)
    arrays: dict[str, Any] = {
        name: made.tensors[name] for name in ("sink",) if name in made.tensors
    }
    for name in _attn.score_buffers(made.problem):
        arrays[name] = made.buffers.get(name)
    trained = {
        name: array
        for name, array in arrays.items()
        if isinstance(array, Tensor) and array.requires_grad
    }
    if plan._heads_first:
        q, k, v = (x.transpose(1, 2) if x.dim() == 4 else x for x in (q, k, v))
    out, *others = _Attention.apply(  # pyright: ignore
        plan, made, list(trained), asked[1], q, k, v, *trained.values()
    )
    if plan._heads_first and out.dim() == 4:
        out = out.transpose(1, 2)
    return asked_for((out, *others), *asked)
