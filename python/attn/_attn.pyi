from collections.abc import Sequence
from typing import Any

__version__: str

class Options:
    def __init__(
        self,
        problem: str = "",
        tensors: dict[str, Any] = {},
        buffers: dict[str, Any] = {},
        heads_first: bool = False,
        seqlen_q: int = 0,
        seqlen_k: int = 0,
        seed: int = 0,
        offset: int = 0,
        backend: str = "auto",
        algorithm: str = "auto",
        threads: int = 0,
        deterministic: bool = False,
        batch_invariant: bool = False,
    ) -> None: ...
    @property
    def problem(self) -> str: ...
    @property
    def tensors(self) -> dict[str, Any]: ...
    @property
    def buffers(self) -> dict[str, Any]: ...
    @property
    def has_arrays(self) -> bool: ...
    @property
    def heads_first(self) -> bool: ...
    @property
    def seqlen_q(self) -> int: ...
    @property
    def seqlen_k(self) -> int: ...
    @property
    def seed(self) -> int: ...
    @property
    def offset(self) -> int: ...

class Plan:
    @property
    def problem(self) -> str: ...
    @property
    def phase(self) -> str: ...
    @property
    def backend(self) -> str: ...
    @property
    def algorithm(self) -> str: ...
    @property
    def workspace_bytes(self) -> int: ...
    @property
    def num_splits(self) -> int: ...
    @property
    def threads(self) -> int: ...
    @property
    def reasons(self) -> list[str]: ...
    def flops(self) -> float: ...

def forward(
    options: Options,
    q: Any,
    k: Any,
    v: Any,
    out: Any,
    lse: Any,
    plan: Plan | None = None,
    is_recorded: bool = False,
    max_logit: bool = False,
) -> tuple[Any, ...]: ...
def backward(
    options: Options,
    d_out: Any,
    q: Any,
    k: Any,
    v: Any,
    out: Any,
    lse: Any,
    wanted: Sequence[str],
    d_lse: Any = None,
    plan: Plan | None = None,
    is_recorded: bool = False,
    row_major: bool = False,
) -> tuple[Any, ...]: ...
def attended(q: Any, k: Any, v: Any, keywords: dict[str, Any]) -> Any: ...
def recorded_forward(ctx: Any, options: Options, q: Any, k: Any, v: Any) -> Any: ...
def recorded_backward(ctx: Any, d_out: Any) -> tuple[Any, ...]: ...
def plan(options: Options, q: Any, k: Any, v: Any, backward: bool) -> Plan: ...
def tiles(
    options: Options,
    q: Any,
    k: Any,
    v: Any,
    block_q: int,
    block_k: int,
    batch: int,
    head: int,
) -> list[str]: ...

class DistPlan:
    @property
    def problem(self) -> str: ...
    @property
    def rank(self) -> int: ...
    @property
    def ranks(self) -> int: ...
    @property
    def balance(self) -> float: ...
    def rows(self, rank: int) -> list[tuple[int, int]]: ...
    def keys(self, rank: int) -> list[tuple[int, int]]: ...
    def area(self, rank: int) -> float: ...
    def bytes(self, sender: int, receiver: int, backward: bool) -> float: ...

def dist_plan(
    options: Options,
    q: list[int],
    k: list[int],
    v: list[int],
    dtype: str,
    gpu: int,
    engine: Any,
    rank: int,
    size: int | None,
    carries_gpu: bool,
    deal: str,
    chunk: int,
    timeout: float,
) -> DistPlan: ...
def dist_forward(
    plan: DistPlan, options: Options, q: Any, k: Any, v: Any, max_logit: bool = False
) -> tuple[Any, ...]: ...
def dist_backward(
    plan: DistPlan,
    options: Options,
    d_out: Any,
    q: Any,
    k: Any,
    v: Any,
    out: Any,
    lse: Any,
    wanted: list[str],
    d_lse: Any,
) -> tuple[Any, ...]: ...
def plans_made() -> int: ...
def score_buffers(problem: str) -> list[str]: ...
def merge(parts: list[tuple[Any, Any]]) -> tuple[Any, Any]: ...
def dropout_mask(kept: Any, probability: float, seed: int, offset: int, rng_state: Any) -> None: ...
def quantize(
    x: Any, type: str, out: Any, scale: Any, scales: str, block: int, rotation: int | None
) -> None: ...
def append_kv(
    read: dict[str, Any],
    written: dict[str, Any],
    type_k: str,
    type_v: str,
    rope_pairs: str,
    norm_eps: float,
    ring: bool,
    norm: bool,
    hadamard: bool,
    hadamard_v: bool,
    backend: str,
    threads: int,
) -> Any: ...
def asks_class(object: Any) -> bool: ...
def signature(name: str, array: Any) -> str: ...
def info() -> dict[str, Any]: ...
def get_num_threads() -> int: ...
def set_num_threads(threads: int) -> None: ...
def alibi_slopes(heads: int) -> list[float]: ...
def tree_words(parents: list[int], seqlen_q: int) -> list[list[int]]: ...
def xla_handler(backward: bool, cuda: bool) -> Any: ...
def command(arguments: list[bytes], itself: list[bytes]) -> int: ...
