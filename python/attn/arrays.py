"""What libraries of arrays need beside DLPack. Called by the extension module; nothing is imported
that the caller has not imported already.

NumPy, and PyTorch from 2.10 on, are read and made in C++ (python/bindings/array.cpp) and come here
for nothing.
"""

from __future__ import annotations

import sys

from . import nvrtc
from .errors import InvalidArgument

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def _library(array: Any) -> str:
    return type(array).__module__.partition(".")[0]


def export(array: Any, name: str) -> Any:
    """The DLPack capsule of an array, the argument `name` of a call. Its library has the data ready
    in the stream of `stream`.
    """
    if not hasattr(array, "__dlpack_device__"):
        raise TypeError(
            f"{name} is a {type(array).__name__}, which shows no memory; accepted are arrays with "
            "data, and tracers of JAX in attn.jax"
        )
    try:
        capsule = _capsule(array)
        if type(capsule).__name__ != "PyCapsule":
            raise TypeError(f"__dlpack__ gives a {type(capsule).__name__}")
        return capsule
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        raise InvalidArgument(
            f"{name} is a {type(array).__name__} that shows no memory ({error}); accepted are "
            "strided arrays in memory"
        ) from error


def _capsule(array: Any) -> Any:
    device_type, _ = array.__dlpack_device__()
    arguments: dict[str, Any] = {}
    if device_type in (2, 13):  # CUDA, CUDA managed
        # -1: the work goes into the library's own stream, nothing has to wait.
        arguments["stream"] = -1 if _library(array) == "cupy" else 1
    try:
        return array.__dlpack__(**arguments, max_version=(1, 0))
    except TypeError:  # before DLPack 1.0
        return array.__dlpack__(**arguments)


def is_writable(array: Any) -> bool:
    """Whether the memory of an array that DLPack does not call read-only may change."""
    return _library(array) not in ("jax", "jaxlib")


def stream(array: Any) -> int:
    """The address of the CUDA stream that an array's library works in; 0 is the default stream."""
    nvrtc.load()
    if _library(array) == "cupy":
        return int(sys.modules["cupy"].cuda.get_current_stream().ptr)
    return 0


def class_meaning(kind: type) -> tuple[str, bool]:
    """What a class of torch.Tensor makes of its tensors beside their memory, in words, else "",
    and whether a call that has asked the class may read the memory.
    """
    torch = sys.modules["torch"]
    bias = sys.modules.get("torch.nn.attention.bias")
    if bias is not None and issubclass(kind, bias.CausalBias):
        words = (
            "which has no memory; accepted are causal=True for causal_lower_right, "
            "mask='key <= query' for causal_upper_left, and either as the attn_mask of "
            "attn.torch.scaled_dot_product_attention"
        )
        return words, False
    plain = {
        "__torch_dispatch__": torch._C._disabled_torch_dispatch_impl,
        "__torch_function__": torch._C._disabled_torch_function_impl,
    }
    for name, disabled in plain.items():
        own = getattr(kind, name)
        function = getattr(own, "__func__", own)
        if function is disabled or function is torch.Tensor.__torch_function__.__func__:
            continue
        words = (
            f"whose class says by {name} what functions make of it; accepted are tensors without "
            "such a class, as tensor.as_subclass(torch.Tensor) may be"
        )
        return words, name == "__torch_function__"
    return "", True


def records_gradients(tensor: Any) -> bool:
    """Whether PyTorch would record what happens to a tensor that requires a gradient."""
    return bool(sys.modules["torch"].is_grad_enabled())


def has_tangent(tensor: Any) -> bool:
    """Whether a tensor of PyTorch has a tangent of forward-mode differentiation."""
    return sys.modules["torch"].autograd.forward_ad.unpack_dual(tensor).tangent is not None


def more_than_number(value: Any) -> str:
    """What an array without dimensions has beside its number, in words; "" where that is nothing.

    PyTorch and JAX follow a derivative from it into what is computed of it, and an array of
    numpy.ma may hold no number at all: a number that is read from it would lose that.
    """
    torch, jax, ma = (sys.modules.get(name) for name in ("torch", "jax", "numpy.ma"))
    if ma is not None and isinstance(value, ma.MaskedArray):
        return "has a mask"
    if jax is not None and isinstance(value, jax.core.Tracer):
        return "is traced by JAX"
    if torch is None or not isinstance(value, torch.Tensor):
        return ""
    if is_transformed(value):
        return "is within a transform of torch.func"
    if has_tangent(value):
        return "has a tangent of forward-mode differentiation"
    return "requires a gradient" if value.requires_grad and torch.is_grad_enabled() else ""


def is_transformed(tensor: Any) -> bool:
    """Whether a tensor of PyTorch is one of vmap's, grad's or another transform of torch.func."""
    return bool(sys.modules["torch"]._C._functorch.is_functorch_wrapped_tensor(tensor))


def is_observed() -> bool:
    """Whether a mode of PyTorch, its profiler or torch.jit.trace follows the operators that run."""
    torch = sys.modules["torch"]
    core = torch._C
    return (
        bool(core._len_torch_dispatch_stack())
        or core._get_tracing_state() is not None
        or torch.autograd._profiler_enabled()
    )


def is_traced() -> bool:
    """Whether PyTorch writes down the operators that run now, by torch.jit.trace or make_fx."""
    torch = sys.modules["torch"]
    if torch._C._get_tracing_state() is not None:
        return True
    proxies = sys.modules.get("torch.fx.experimental.proxy_tensor")
    return proxies is not None and proxies.get_proxy_mode() is not None


def empty(like: Any, shape: tuple[int, ...], float32: bool) -> Any:
    """An array that the extension can write, of the device of `like` and of its dtype or float32.

    Libraries whose arrays cannot be written after they are made get NumPy's; see `finish`.
    """
    library = _library(like)
    dtype = "float32" if float32 else like.dtype
    if library == "cupy":
        return sys.modules["cupy"].empty(shape, dtype)
    if library == "torch":
        torch = sys.modules["torch"]
        return torch.empty(shape, dtype=torch.float32 if float32 else dtype, device=like.device)
    device_type, _ = like.__dlpack_device__()
    if device_type != 1:
        raise NotImplementedError(
            f"no results on the device of a {type(like).__name__}; accepted are PyTorch and CuPy "
            "on a GPU, and attn.jax"
        )
    import numpy

    return numpy.empty(shape, dtype)


def finish(like: Any, made: Any) -> Any:
    """What the caller receives for `made`, which `empty` gave."""
    if _library(like) in ("jax", "jaxlib"):
        return sys.modules["jax"].numpy.asarray(made)
    namespace = getattr(like, "__array_namespace__", None)
    if namespace is not None and type(made) is not type(like):
        return namespace().from_dlpack(made)
    return made
