"""Messages between the processes of a group of torch.distributed."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any, NoReturn

import torch
import torch.distributed as _group
from torch import Tensor

from ..errors import InvalidArgument, Unavailable


class _OfGpu:
    """Memory of a GPU as PyTorch reads it."""

    def __init__(self, address: int, size: int):
        self.__cuda_array_interface__ = {
            "shape": (size,),
            "typestr": "|u1",
            "data": (address, False),
            "version": 3,
        }


class Messages:
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
_known: dict[tuple[Any, bool], Messages] = {}


def messages_of(group: Any, on_gpu: bool) -> Messages:
    if not _group.is_initialized():
        raise InvalidArgument(
            "torch.distributed has no process group; accepted is a plan made after "
            "torch.distributed.init_process_group"
        )
    if group is None:
        group = _group.group.WORLD
    if (group, on_gpu) not in _known:
        _known[group, on_gpu] = Messages(group, on_gpu)
    return _known[group, on_gpu]
