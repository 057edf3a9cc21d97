"""attn.hf against "eager" in every architecture of the installed transformers, at toy size.

PYTHONPATH=build/python/package python python/tests/sweep_transformers.py --out TABLE.md
    [--only NAME,...] [--jobs 2] [--limit 60]

Each in a process of its own: a forward and a backward pass, with and without padding on the left,
generated tokens with a dynamic and a static cache, and `output_attentions=True`. Writes a table of
what is equal, refused by name, not reached, or wrong; ends with 1 if anything is wrong. Results are
kept in TABLE.jsonl on the way, so that a run that was ended goes on where it was.
"""

from __future__ import annotations

import argparse
import copy
import json
import multiprocessing
import os
import sys
import time
import warnings
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
import torch
import transformers

sys.path.insert(0, str(Path(__file__).parent))
import attn.hf
import toy_models
import toy_special
from sweep_table import WRONG, summary, table

CLOSE = 1e-4  # of the largest number; float32 through a few layers
calls = {"attn": 0}


def count_calls() -> None:
    """Registers attn so that it is seen whether a model calls it."""
    attn.hf.register()
    table = transformers.AttentionInterface._global_mapping
    inner = table["attn"]

    def counted(*args: Any, **kwargs: Any) -> Any:
        calls["attn"] += 1
        return inner(*args, **kwargs)

    table["attn"] = counted


def floats(result: Any) -> list[torch.Tensor]:
    """The floating point tensors of a model's output, its cache and weights aside."""
    if isinstance(result, torch.Tensor):
        return [result] if result.is_floating_point() else []
    if isinstance(result, dict):
        apart = ("cache", "past_key_values", "attentions", "cross_attentions")
        kept = [v for n, v in result.items() if n not in apart]
        return [t for v in kept for t in floats(v)]
    if isinstance(result, (list, tuple)):
        return [t for v in result for t in floats(v)]
    return []


def without_padding(t: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Zeros in rows of padding, which may hold anything; a token may have several rows."""
    if (
        t.dim() < 2
        or t.shape[0] != len(mask)
        or t.shape[1] not in (mask.shape[1], 3 * mask.shape[1])
    ):
        return t
    rows = mask.repeat_interleave(t.shape[1] // mask.shape[1], dim=1)
    return t * rows.view(*rows.shape, *[1] * (t.dim() - 2))


def passes(model: Any, inputs: dict[str, Any]) -> list[torch.Tensor]:
    model.zero_grad()
    torch.manual_seed(4)
    run = toy_special.RUNS.get(model.config.model_type)
    found = floats(model(**inputs) if run is None else run(model))
    if not any(t.requires_grad for t in found):
        return found
    mask = inputs.get("attention_mask")
    if isinstance(mask, torch.Tensor):
        found = [without_padding(t, mask) for t in found]
    sum((t * torch.linspace(0.5, 1.5, t.numel()).view(t.shape)).sum() for t in found).backward()
    gradients = [p.grad.flatten() for p in model.parameters() if p.grad is not None]
    return [*found, torch.cat(gradients)]


def generated(model: Any, inputs: dict[str, torch.Tensor], cache: str) -> list[torch.Tensor]:
    given = {n: t for n, t in inputs.items() if not n.startswith("decoder_")}
    torch.manual_seed(4)
    out = model.generate(
        **given,
        max_new_tokens=8,
        do_sample=False,
        disable_compile=True,
        output_logits=True,
        return_dict_in_generate=True,
        cache_implementation=cache,
    )
    return list(out.logits)


def weights(model: Any, inputs: dict[str, torch.Tensor]) -> list[torch.Tensor]:
    """Those that the model gives, an empty tensor for each None in their place."""
    torch.manual_seed(4)
    with torch.no_grad():
        out = model(**inputs, output_attentions=True)

    def leaves(given: Any) -> list[torch.Tensor]:
        if isinstance(given, (list, tuple)):
            return [t for part in given for t in leaves(part)]
        return [torch.empty(0)] if given is None else floats(given)

    return [t for n, v in out.items() if n.endswith("attentions") for t in leaves(v)]


def distance(found: list[torch.Tensor], wanted: list[torch.Tensor]) -> float:
    if [t.shape for t in found] != [t.shape for t in wanted]:
        return float("inf")
    worst = 0.0
    for x, y in zip(found, wanted, strict=True):
        x, y = torch.nan_to_num(x, 1e4), torch.nan_to_num(y, 1e4)
        scale = max(float(y.abs().max()) if y.numel() else 0.0, 1e-3)
        worst = max(worst, float((x - y).abs().max()) / scale if y.numel() else 0.0)
    return worst


def sentence(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:220]}"


def compare(ours: Any, eager: Any, step: Any) -> str | None:
    """ "equal" or what is not; None where "eager" has no result either."""
    before = calls["attn"]
    try:
        wanted = step(eager)
    except Exception as error:
        wanted = error
    try:
        found = step(ours)
    except attn.Error as error:
        return f"refused: {str(error)[:220]}"
    except Exception as error:
        return None if isinstance(wanted, Exception) else f"crashes: {sentence(error)}"
    if isinstance(wanted, Exception):
        is_ours = calls["attn"] > before
        return f"returns where eager raises {sentence(wanted)}" if is_ours else None
    if found and not any(map(torch.numel, found)) and any(map(torch.numel, wanted)):
        return "None in place of weights"
    far = distance(found, wanted)
    if far <= CLOSE:
        return "equal"
    try:
        exact = [t.float() for t in step(copy.deepcopy(eager).double())]
    except Exception:  # it does not run in float64
        return f"differs: {far:.2g} of the largest number"
    # The error rule of the library: at most twice as far from float64 as "eager" is.
    own, mine = distance(wanted, exact), distance(found, exact)
    if mine <= 2 * own:
        return "equal"
    return f"differs: {mine:.2g} of the largest number from float64, eager {own:.2g}"


def inputs_that_run(eager: Any, config: Any) -> tuple[dict[str, torch.Tensor], ...]:
    """Inputs that the model takes, plain and padded on the left. Raises what it says of others."""
    plain, padded = (toy_models.inputs_of(eager, config, p) for p in (False, True))
    try:
        passes(eager, plain)
        return plain, padded
    except Exception as error:
        first = error
    for inputs in toy_models.more_inputs(eager, config, plain):
        try:
            passes(eager, inputs)
        except Exception:
            continue
        more = {n: t for n, t in inputs.items() if n not in plain}
        if config.model_type in toy_models.POOLED_PADDING or any(n not in inputs for n in padded):
            return inputs, inputs
        return inputs, padded | more
    raise first


def toy(kind: str) -> tuple[Any, Any, Any, tuple[dict[str, torch.Tensor], ...]]:
    """A model that runs with "eager": its class, what makes its configuration, itself, inputs."""
    first: Exception = ValueError("its configuration names no model")
    config = toy_models.configuration(kind)  # raises where there is none
    for variant in toy_models.VARIANTS:
        for cls in toy_models.classes_of(config):

            def make(variant: Any = variant) -> Any:
                return toy_models.configuration(kind, **variant)

            try:
                with torch.device("meta"):
                    count = sum(p.numel() for p in cls._from_config(make()).parameters())
                if count > 1e8:
                    raise ValueError(f"{count} parameters at toy size")
                eager = toy_models.model_of(cls, make(), "eager")
                return cls, make, eager, inputs_that_run(eager, make())
            except Exception as error:
                if str(first).startswith("its configuration"):
                    first = error
    raise first


def examine(kind: str) -> dict[str, str]:
    cls, make, eager, (plain, padded) = toy(kind)
    try:
        ours = toy_models.model_of(cls, make(), "attn")
    except Exception as error:
        return {"": f"not taken by transformers: {sentence(error)}"}
    steps = {
        "passes": lambda m: passes(m, plain),
        "passes, padded": lambda m: passes(m, padded),
        "output_attentions": lambda m: weights(m, plain),
    }
    if cls.can_generate():
        for cache in ("dynamic", "static"):
            for name, inputs in (("", plain), (", padded", padded)):
                steps[f"{cache} cache{name}"] = lambda m, c=cache, i=inputs: generated(m, i, c)
    if "attention_mask" not in plain or padded is plain:
        steps = {name: step for name, step in steps.items() if "padded" not in name}
    found = {name: compare(ours, eager, step) for name, step in steps.items()}
    if not calls["attn"]:
        made = {n: r for n, r in found.items() if r and r.startswith(WRONG)}
        return made or {"": "never calls attn"}
    return {name: result for name, result in found.items() if result}


def child(kind: str, pipe: Any) -> None:
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity(transformers.logging.CRITICAL)
    torch.set_num_threads(1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    try:
        pipe.send(examine(kind))
    except Exception as error:
        pipe.send({"": f"not built: {sentence(error)}"})


def sweep(kinds: list[str], jobs: int, limit: float, journal: Path) -> dict[str, dict[str, str]]:
    fork = multiprocessing.get_context("fork")
    waiting, running, results = list(kinds), {}, {}
    while waiting or running:
        while waiting and len(running) < jobs:
            kind = waiting.pop(0)
            ends = fork.Pipe(duplex=False)
            process = fork.Process(target=child, args=(kind, ends[1]))
            process.start()
            ends[1].close()
            running[kind] = (process, ends[0], time.monotonic())
        for kind, (process, pipe, start) in list(running.items()):
            result = None
            if pipe.poll(0.02):
                try:
                    result = pipe.recv()
                except EOFError:
                    result = {"": f"crashes: the process ended with {process.exitcode}"}
            elif time.monotonic() - start > limit:
                result = {"": f"not built: not done after {limit:.0f} s"}
            if result is None:
                continue
            process.kill()
            process.join()
            del running[kind]
            results[kind] = result
            with journal.open("a") as file:
                file.write(json.dumps({kind: result}) + "\n")
            print(f"[{len(results)}/{len(kinds)}] {kind}: {summary(result)}", flush=True)
    return results


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", default="")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--limit", type=float, default=90)
    given = parser.parse_args()
    count_calls()
    kinds = given.only.split(",") if given.only else toy_models.kinds()
    journal = given.out.with_suffix(".jsonl")
    done: dict[str, dict[str, str]] = {}
    if journal.exists():
        for line in journal.read_text().splitlines():
            done |= json.loads(line)
    left = [kind for kind in kinds if kind not in done]
    results = done | sweep(left, given.jobs, given.limit, journal)
    given.out.write_text(table(results, kinds))
    return any(r.startswith(WRONG) for found in results.values() for r in found.values())


if __name__ == "__main__":
    sys.exit(main())
