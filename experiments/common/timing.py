"""Times, memory and where the time goes, by CUDA events and PyTorch's profiler."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

PEAK = {"H100": 989e12, "H200": 989e12, "A100": 312e12}  # dense bf16 FLOP/s, by the data sheets


def synchronize(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def peak_flops() -> float | None:
    name = torch.cuda.get_device_name() if torch.cuda.is_available() else ""
    return next((peak for chip, peak in PEAK.items() if chip in name), None)


def median_ms(call: Callable[[], Any], device: str, repeats: int = 20, warm: int = 3) -> float:
    """Milliseconds of a call: the median of single ones."""
    for _ in range(warm):
        call()
    synchronize(device)
    times: list[float] = []
    if device != "cuda":
        for _ in range(repeats):
            start = time.perf_counter()
            call()
            times.append(1e3 * (time.perf_counter() - start))
        return statistics.median(times)
    events = [
        (torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True))
        for _ in range(repeats)
    ]
    for start_event, end_event in events:
        start_event.record()
        call()
        end_event.record()
    torch.cuda.synchronize()
    return statistics.median(a.elapsed_time(b) for a, b in events)


def graph_of(call: Callable[[], Any]) -> torch.cuda.CUDAGraph:
    """The call as a CUDA graph, so that launches cost nothing when it is replayed."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph


def peak_megabytes(device: str) -> float | None:
    return round(torch.cuda.max_memory_allocated() / 2**20) if device == "cuda" else None


# cuDNN's backward pass has dot_do_o and convert_dq beside its product kernel.
ATTENTION_KERNELS = ("attn_", "flash", "fmha", "sdpa", "dot_do_o", "convert_dq")


def attends(kernel: str) -> bool:
    """By its name; Inductor names kernels after what they were fused from, also copies."""
    name = kernel.lower()
    if name.startswith("triton_"):
        return "triton_tem" in name and "flex" in name
    return any(word in name for word in ATTENTION_KERNELS)


def kernels(call: Callable[[], Any], most: int = 30) -> dict[str, Any]:
    """Milliseconds of each kernel in one call, the longest first, and those that attend.

    Which attend is told by their names, so that eager's, which are products and softmax as others
    are, are not among them.
    """
    from torch.profiler import ProfilerActivity, profile

    call()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        call()
        torch.cuda.synchronize()
    rows = [
        (event.key, event.self_device_time_total / 1e3, event.count)
        for event in profiler.key_averages()
        if event.self_device_time_total > 0
    ]
    rows.sort(key=lambda row: -row[1])
    total = sum(ms for _, ms, _ in rows)
    return {
        "total_ms": round(total, 3),
        "attention_ms": round(sum(ms for name, ms, _ in rows if attends(name)), 3),
        "longest": [[name[:120], round(ms, 3), count] for name, ms, count in rows[:most]],
    }
