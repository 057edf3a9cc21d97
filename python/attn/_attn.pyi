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
    ) -> None: ...
    @property
    def problem(self) -> str: ...

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
    options: Options, q: Any, k: Any, v: Any, out: Any, lse: Any, plan: Plan | None = None
) -> tuple[Any, Any]: ...
def backward(
    options: Options,
    d_out: Any,
    q: Any,
    k: Any,
    v: Any,
    out: Any,
    lse: Any,
    wanted: list[str],
    plan: Plan | None = None,
) -> dict[str, Any]: ...
def plan(options: Options, q: Any, k: Any, v: Any, backward: bool) -> Plan: ...
def merge(parts: list[tuple[Any, Any]]) -> tuple[Any, Any]: ...
def signature(name: str, array: Any) -> str: ...
def info() -> dict[str, Any]: ...
def alibi_slopes(heads: int) -> list[float]: ...
