"""Functions with another library's name have its parameters: names, order, kinds and defaults.

What differs by design is in DIFFERENCES, and must differ there.
"""

from __future__ import annotations

import inspect
from importlib import import_module
from inspect import Parameter
from typing import Any

import pytest

MISSING = None
# {function: {parameter: (theirs, attn's)}} as Python writes them, the kind in front where it is
# by keyword alone.
DIFFERENCES: dict[str, dict[str, tuple[str | None, str | None]]] = {
    # PyTorch documents what its parser refuses: these two by position.
    "torch, parsed: scaled_dot_product_attention": {
        "scale": ("*, scale=None", "scale=None"),
        "enable_gqa": ("*, enable_gqa=False", "enable_gqa=False"),
    },
    # attn finds the tiles from the mask itself: there are no blocks to order or to keep apart.
    "torch: create_block_mask": {
        "separate_full_blocks": ("separate_full_blocks=True", MISSING),
        "compute_dq_write_order": ("compute_dq_write_order=False", MISSING),
        "dq_kv_order": ("dq_kv_order=True", MISSING),
    },
}


def documented_sdpa(torch):
    """The head of its documentation as the head of a function."""
    text, returns, _ = torch.nn.functional.scaled_dot_product_attention.__doc__.partition(
        " -> Tensor:"
    )
    assert returns, "PyTorch documents the signature in another form"
    names: dict[str, Any] = {}
    exec(f"def {text.strip()}: ...", names)
    return inspect.signature(names["scaled_dot_product_attention"])


def parsed_sdpa(torch):
    """What the builtin's arguments are parsed by."""
    parameters = [
        Parameter(
            a.name,
            Parameter.KEYWORD_ONLY if a.kwarg_only else Parameter.POSITIONAL_OR_KEYWORD,
            default=a.default_value if a.has_default_value() else Parameter.empty,
        )
        for a in torch.ops.aten.scaled_dot_product_attention.default._schema.arguments
    ]
    return inspect.Signature(parameters)


def pair(name):
    """Their signature and attn's."""
    whose, _, name = name.partition(": ")
    if whose == "jax":
        jax = pytest.importorskip("jax")
        theirs: Any = inspect.signature(jax.nn.dot_product_attention)
        ours = import_module("attn.jax").dot_product_attention
    else:
        torch = pytest.importorskip("torch")
        ours = getattr(import_module("attn.torch"), name)
        if name == "scaled_dot_product_attention":
            theirs = (parsed_sdpa if "parsed" in whose else documented_sdpa)(torch)
        else:
            flex = import_module("torch.nn.attention.flex_attention")
            theirs = inspect.signature(getattr(flex, name))
    return theirs, inspect.signature(ours)


def written(parameter):
    if parameter is None:
        return MISSING
    assert parameter.kind in (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
    text = parameter.name
    if parameter.default is not parameter.empty:
        text += f"={parameter.default!r}"
    return f"*, {text}" if parameter.kind is Parameter.KEYWORD_ONLY else text


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(
    "name",
    [
        "torch: scaled_dot_product_attention",
        "torch, parsed: scaled_dot_product_attention",
        "torch: flex_attention",
        "torch: create_block_mask",
        "jax: dot_product_attention",
    ],
)
def test_signature(name):
    theirs, ours = (signature.parameters for signature in pair(name))
    different = {  # older releases lack some
        parameter: both
        for parameter, both in DIFFERENCES.get(name, {}).items()
        if parameter in theirs or parameter in ours
    }
    found = {
        parameter: both
        for parameter in {**theirs, **ours}
        if (both := tuple(written(side.get(parameter)) for side in (theirs, ours)))
        and both[0] != both[1]
    }
    assert found == different
    shared = [parameter for parameter in theirs if parameter in ours]
    assert shared == [parameter for parameter in ours if parameter in theirs]
    # Whatever is given by position means the same: nothing that is missing comes before.
    assert list(ours)[: len(shared)] == shared == list(theirs)[: len(shared)]
