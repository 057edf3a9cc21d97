"""Who holds which rows of a sequence: the plan of attn.dist."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import count
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from .. import _attn
from ..errors import InvalidArgument
from ..options import make_options, rng_state
from .messages import Messages, messages_of

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ..types import Options

_DTYPES = {
    torch.float32: "f32",
    torch.bfloat16: "bf16",
    torch.float16: "f16",
    torch.float64: "f64",
}

# Plans by the text that stands for one among the arguments of an operator.
_PLANS: WeakValueDictionary[str, Plan] = WeakValueDictionary()
_numbers = count()


def plan_of(name: str) -> Plan:
    """The plan that `name` stands for."""
    found = _PLANS.get(name)
    if found is None:
        raise InvalidArgument(
            f"the plan {name} of a compiled call is gone; accepted is one that is kept for as long "
            "as what was compiled with it"
        )
    return found


class Plan:
    """Who holds which rows of a sequence, and what is sent; `attn.dist.plan` makes it."""

    def __init__(
        self,
        made: _attn.DistPlan,
        options: Options,
        group: Any,
        messages: Messages | None,
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
        # What torch.compile reads while it traces is data of Python.
        self._rank_of_group, self._size = made.rank, made.ranks
        self._rows = [made.rows(rank) for rank in range(made.ranks)]
        self._keys = [made.keys(rank) for rank in range(made.ranks)]
        given = [x for x in options.values() if isinstance(x, Tensor)]
        arrays = self._described.buffers
        self._read_by_formulas = {
            name: array
            for name in _attn.score_buffers(self._described.problem)
            if isinstance(array := arrays.get(name), Tensor) and all(array is not x for x in given)
        }
        # Also tells plans of different processes apart, whose graphs PyTorch may keep on disk.
        self._name = f"{next(_numbers)} of {made.problem} {self._rows} {self._keys}"
        _PLANS[self._name] = self

    @property
    def problem(self) -> str:
        """The descriptor of the whole problem."""
        return self._made.problem

    @property
    def rank(self) -> int:
        """This process's rank in the group; -1 of a plan to look at."""
        return self._rank_of_group

    @property
    def ranks(self) -> int:
        """How many processes there are."""
        return self._size

    @property
    def balance(self) -> float:
        """Mean over largest share of the visible pairs: 1 is an even deal."""
        return self._made.balance

    def rows(self, rank: int | None = None) -> list[tuple[int, int]]:
        """The rows [begin, end) of Q and of the output that a rank holds, ascending."""
        return list(self._rows[self._rank(rank)])

    def keys(self, rank: int | None = None) -> list[tuple[int, int]]:
        """Those of K and V; where Q and K have the same rows, those of rows()."""
        return list(self._keys[self._rank(rank)])

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
        result: Tensor = torch.ops.attn.dist_unshard.default(x, self._name, self._dim(x, dim), keys)
        return result

    def _rank(self, rank: int | None) -> int:
        number = self.rank if rank is None else rank
        if not 0 <= number < self.ranks:
            why = ", and the plan is of no group" if rank is None else ""
            raise InvalidArgument(f"rank is {rank}{why}; accepted are 0 to {self.ranks - 1}")
        return number

    def _dim(self, x: Tensor, dim: int | None) -> int:
        if dim is None:
            dim = 0 if self._packed else 2 if self._heads_first and x.dim() == 4 else 1
        return dim if dim >= 0 else dim + x.dim()

    def _with(self, options: Mapping[str, Any]) -> _attn.Options:
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
    messages = None if ranks is not None else messages_of(group, on_gpu)
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
