"""A model's prefill and decoding by examples/generate beside llama.cpp, on one thread.

    python bench/cpu/generate_peers.py MODEL.gguf [--json FILE]

llama.cpp comes by the package llama-cpp-python, or xllamacpp, whose wheel is built for AVX2. Both
get the same prompts, the beginning of LICENSE, and then decode 32 tokens. Rates are by processor
time, which busy neighbours change less than wall time, of the best of several rounds in turns. Both
read the weights as they are stored.
"""

import argparse
import datetime
import importlib.metadata
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
DECODED = 32


def time_llama_cpp_python(model, text, kind):
    """Tokens of the prompt, seconds of prefill, seconds of decoding."""
    import llama_cpp

    cache = {"f16": llama_cpp.GGML_TYPE_F16, "q8_0": llama_cpp.GGML_TYPE_Q8_0}[kind]
    threads = {"n_threads": 1, "n_threads_batch": 1}
    llama = llama_cpp.Llama(
        model, n_ctx=8192, flash_attn=True, type_k=cache, type_v=cache, verbose=False, **threads
    )
    tokens = llama.tokenize(text.encode(), add_bos=False)
    start = time.process_time()
    llama.eval(tokens)
    middle = time.process_time()
    for token in tokens[:DECODED]:
        llama.eval([token])
    return [len(tokens), middle - start, time.process_time() - middle]


def time_xllamacpp(model, text, kind):
    """Likewise; decoding is what 32 more tokens take."""
    import xllamacpp

    p = xllamacpp.CommonParams()
    p.model.path = model
    p.n_ctx, p.n_parallel, p.warmup = 8192, 1, False
    p.cpuparams.n_threads = p.cpuparams_batch.n_threads = 1
    p.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_ENABLED
    cache = {"f16": "GGML_TYPE_F16", "q8_0": "GGML_TYPE_Q8_0"}[kind]
    p.cache_type_k = p.cache_type_v = getattr(xllamacpp.ggml_type, cache)
    server = xllamacpp.Server(p)
    seconds = []
    for tokens in (1, DECODED + 1):
        ask = {"prompt": text, "max_tokens": tokens, "temperature": 0, "cache_prompt": False}
        start = time.process_time()
        said = server.handle_completions({**ask, "ignore_eos": True})
        seconds.append(time.process_time() - start)
    return [said["usage"]["prompt_tokens"], seconds[0], seconds[1] - seconds[0]]


PEERS = {"llama-cpp-python": time_llama_cpp_python, "xllamacpp": time_xllamacpp}


def time_ours(program, model, path, kind):
    count = str(DECODED + 1)
    options = ["--threads", "1", "--tokens", count, "--cache", kind]
    command = [program, model, *options, "--file", path]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    found = re.findall(r": (\d+) tokens in .*, ([0-9.]+) s of processor", said)
    (prompt, prefill), (decoded, decoding) = [(int(n), float(s)) for n, s in found]
    if decoded != DECODED:
        raise SystemExit(f"only {decoded} tokens were generated: try other --characters")
    return [prompt, prefill, decoding]


def time_peer(model, path, kind):
    """In a process of its own, which ends with its memory."""
    command = [sys.executable, __file__, model, "--peer", kind, path]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return json.loads(re.findall(r"^timed (.*)$", said, re.M)[-1])


def measure(arguments, characters):
    """{(who, type of the cache): (tokens of the prompt, seconds of prefill, of decoding)}"""
    best = {}
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as prompt:
        prompt.write((ROOT / "LICENSE").read_text()[:characters])
        prompt.flush()
        for _ in range(arguments.rounds):
            for kind in ("f16", "q8_0"):
                ours = time_ours(arguments.program, arguments.model, prompt.name, kind)
                peer = time_peer(arguments.model, prompt.name, kind)
                for who, result in (("attn", ours), ("llama.cpp", peer)):
                    least = best.get((who, kind), result)
                    best[who, kind] = [min(x) for x in zip(least, result, strict=True)]
    return best


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--program", default=str(ROOT / "build/examples/example_generate"))
    parser.add_argument("--characters", type=int, nargs="+", default=[2000, 9500])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--peer", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    installed = {d.metadata["Name"]: d.version for d in importlib.metadata.distributions()}
    package = next((p for p in PEERS if p in installed), None)
    if package is None:
        raise SystemExit(f"not compared: install one of {', '.join(PEERS)}")
    if arguments.peer:
        kind, path = arguments.peer
        result = PEERS[package](arguments.model, pathlib.Path(path).read_text(), kind)
        print("\ntimed", json.dumps(result))
        return

    rows = []
    for characters in arguments.characters:
        for (who, kind), (tokens, prefill, decoding) in measure(arguments, characters).items():
            rates = {
                "prefill": round(tokens / prefill, 1),
                "decoding": round(DECODED / decoding, 1),
            }
            rows.append({"who": who, "cache": kind, "prompt": tokens, **rates})
            print(rows[-1], flush=True)
    if arguments.json:
        cpu = re.search(r"model name\s*: (.*)", pathlib.Path("/proc/cpuinfo").read_text())
        git = ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"]
        head = {
            "command": f"python bench/cpu/generate_peers.py {pathlib.Path(arguments.model).name}"
            f" --rounds {arguments.rounds}",
            "commit": subprocess.run(git, capture_output=True, text=True).stdout.strip(),
            "date": str(datetime.date.today()),
            "cpu": cpu.group(1) if cpu else "unknown",
            "peer": f"{package} {installed[package]}",
            "rates": "tokens a second of processor time, one thread",
        }
        arguments.json.write_text(json.dumps({**head, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
