"""Runs examples/generate on small random models and compares it with llama.py: tokens of prompts,
logits of every token, what was generated, and text. Then gives it broken files.

    python compare.py PROGRAM [--seed S]
"""
import argparse
import pathlib
import subprocess
import sys
import tempfile

import numpy as np

import hugging_face
from llama import Bpe, Llama, SentencePiece

TEXTS = ["the cat sat on the mat and the cat sat on the", "They'LL see 1234 of 56  cats!\r\n\n  x = [a_b];\tdon't  the",
         "the end.<|turn|> na\u00efve \u4e16\u754c \u00bd \u2014 \U0001f600 end ", "a"]

# (tokenizer, kinds of matrices, what the model has, options, the cache, the weights, texts)
CASES = [
    ("smollm", ["f32"], {}, "--cache f32", "f32", None, TEXTS[:1]),
    ("smollm", ["f32"], {}, "--cache f32 --chunk 5 --page 4", "f32", None, TEXTS),
    ("llama-bpe", ["q8_0", "q4_0", "q4_1", "bf16"], {"factors": True, "heads": 6, "heads_k": 2},
     "--weights f32 --chunk 7 --page 3 --pages 45 --batch 2", "f16", "f32", TEXTS),
    ("gpt2", ["q4_1", "q8_0", "q4_0"], {"tied": False, "rope": 16, "linear": 2.0}, "--threads 3", "f16", None,
     TEXTS[:2]),
    ("llama", ["f16", "bf16"], {"heads_k": 1, "layers": 3}, "--cache q8_0 --page 5", "q8_0", None,
     [TEXTS[0], "an \u00e9 mat", TEXTS[0]]),
    ("llama", ["f32"], {"heads_k": 4}, "--cache q4_0 --chunk 4", "q4_0", None, TEXTS[:1]),
    ("gpt2", ["q8_0", "q4_1"], {}, "--cache f32 --weights f16", "f32", "f16", TEXTS[:1]),
    ("gpt2", ["f16"], {}, "--cache bf16 --weights bf16", "bf16", "bf16", TEXTS[1:3]),
]


ROPE3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
         "original_max_position_embeddings": 64}
# As CASES, and how the folder is written: models of Hugging Face, beside the GGUF file of the same weights.
FOLDERS = [
    ("smollm", ["f32", "bf16"], {}, "--cache f32", "f32", None, TEXTS[:1], {}),
    ("llama-bpe", ["bf16"], {"factors": hugging_face.llama3_factors(500.0, 32, ROPE3), "heads": 6, "heads_k": 2},
     "--cache f32 --chunk 7 --page 3", "f32", None, TEXTS, {"rope": ROPE3, "shards": 3, "new": True}),
    ("gpt2", ["f16"], {"tied": False}, "--cache f16 --weights f32", "f16", "f32", TEXTS[1:3], {"shards": 2}),
    ("llama", ["f16", "f32"], {"linear": 2.0, "heads_k": 1}, "--cache f32", "f32", None, [TEXTS[0], "an \u00e9 mat"],
     {"rope": {"type": "linear", "factor": 2.0}}),
]


def run(program, model, options, texts, logits=None):
    command = [program, model, *options.split(), *(["--logits", logits] if logits else []), *texts]
    return subprocess.run(command, capture_output=True, timeout=600)


class Failed(Exception):
    pass


def expect(condition, what):
    if not condition:
        raise Failed(what)


def read_logits(path, vocabulary):
    """{prompt: {position: (token, logits)}}"""
    row = np.dtype([("prompt", "<i4"), ("position", "<i4"), ("token", "<i4"), ("logits", "<f4", vocabulary)])
    seen = {}
    for r in np.fromfile(path, row):
        of = seen.setdefault(int(r["prompt"]), {})
        expect(int(r["position"]) not in of, "a position whose logits were written twice")
        of[int(r["position"])] = (int(r["token"]), r["logits"])
    return seen


def compare(program, folder, rng, case, draft):
    kind, kinds, shape, options, cache, weights, texts, *written = case
    tokenizer = SentencePiece() if kind == "llama" else Bpe(kind, rng)
    model = Llama(rng, tokenizer, kinds, **shape)
    path, logits_path = folder / "model.gguf", folder / "logits"
    path.write_bytes(model.file())
    of_gguf = None
    if written:
        done = run(program, path, f"{options} --tokens 24 --draft {draft}", texts, logits_path)
        expect(done.returncode == 0, f"exit status {done.returncode}: {done.stderr.decode()}")
        of_gguf = read_logits(logits_path, len(tokenizer.tokens))
        path = folder / "model"
        hugging_face.write(path, model, **written[0])
    done = run(program, path, f"{options} --tokens 24 --draft {draft}", texts, logits_path)
    expect(done.returncode == 0, f"exit status {done.returncode}: {done.stderr.decode()}")
    seen = read_logits(logits_path, len(tokenizer.tokens))
    expect(sorted(seen) == list(range(len(texts))), f"logits of the prompts {sorted(seen)}")
    if of_gguf is not None:  # the same but for the order of sums over a head
        for i, rows in seen.items():
            expect([r[0] for r in rows.values()] == [r[0] for r in of_gguf[i].values()], "tokens are not GGUF's")
            ours, theirs = (np.stack([r[1] for r in of.values()]) for of in (rows, of_gguf[i]))
            expect(np.abs(ours - theirs).max() < (1e-4 if cache == "f32" else 2e-2) * theirs.std(), "logits are not GGUF's")
    errors, changes, printed = [], [], {}
    for i, text in enumerate(texts):
        prompt = tokenizer.encode(text)
        rows = [seen[i][p] for p in range(len(seen[i]))]
        ids = [int(token) for token, _ in rows]
        expect(ids[:len(prompt)] == prompt, f"tokens {ids[:len(prompt)]} of {text!r}, expected {prompt}")
        got, expected = np.stack([row for _, row in rows]), model.logits(ids, cache, weights)
        other = model.logits(ids, "f16" if cache == "f32" else "f32", weights)
        errors.append((got - expected) / expected.std())
        changes.append((other - expected) / expected.std())
        following = got.argmax(1)[len(prompt) - 1:]
        expect(ids[len(prompt):] == following[:-1].tolist(), f"a token after {text!r} is not the likeliest")
        expect(len(following) == 24 or following[-1] == model.values["tokenizer.ggml.eos_token_id"], f"{len(following)} tokens")
        printed[i] = text.encode() + tokenizer.decode(following.tolist()) + b"\n"
    if len(texts) == 1:
        expect(done.stdout == printed[0], f"printed {done.stdout!r}, expected {printed[0]!r}")
    for i in printed if len(texts) > 1 else []:
        expect(b"--- %d\n%s" % (i + 1, printed[i]) in done.stdout, f"not printed: {printed[i]!r}")
    # A number near the middle of two that the cache has is rounded either way. Such differences are a
    # part of what another type of cache makes.
    error, change = (np.sqrt(np.mean(np.concatenate(x) ** 2)) for x in (errors, changes))
    allowed = 1e-5 if cache == "f32" else change / 2
    expect(error < allowed < change, f"logits differ by {error:.1e} of their spread; allowed are {allowed:.1e}")
    accepted = int(done.stderr.split(b" of ")[-2].split()[-1])
    return error / allowed, accepted, {i: [token for token, _ in seen[i].values()] for i in seen}


def broken_files(program, folder, rng):
    """Every file is run or refused with a sentence, in seconds."""
    whole = Llama(rng, Bpe("gpt2", rng), ["f16"]).file()
    tensors = whole.index(b"token_embd.weight")
    refused = 0
    path = folder / "broken.gguf"

    def give(data, must_fail):
        nonlocal refused
        path.write_bytes(data)
        done = run(program, path, "--tokens 2", ["the cat"])
        expect(done.returncode in ((1,) if must_fail else (0, 1)), f"exit status {done.returncode}: {done.stderr!r}")
        if done.returncode == 1:
            refused += 1
            expect(done.stderr.startswith(f"generate: {path}: ".encode()) and done.stderr.count(b"\n") == 1,
                   f"said {done.stderr!r}")

    for length in [0, 3, 4, 8, 20, 24, len(whole) - 1, *rng.integers(24, len(whole), 30)]:
        give(whole[:length], True)
    for _ in range(120):
        data = bytearray(whole)
        # Values are in front; half of the changes go to names, shapes and offsets of tensors.
        at = int(rng.integers(0, 24 + 900)) if rng.random() < 0.5 else tensors + int(rng.integers(-16, 1500))
        data[at] = int(rng.integers(256))
        if rng.random() < 0.3:  # a size past all bounds
            data[at:at + 8] = bytes(rng.choice([0, 127, 255], 8).astype(np.uint8))
        give(bytes(data), False)
    return refused


def broken_folders(program, folder, rng):
    path = folder / "broken"
    refused = 0

    def give(name, data, must_fail):
        nonlocal refused
        whole = (path / name).read_bytes()
        (path / name).write_bytes(data)
        done = run(program, path, "--tokens 2", ["the cat"])
        (path / name).write_bytes(whole)
        expect(done.returncode in ((1,) if must_fail else (0, 1)), f"{name}: exit status {done.returncode}: {done.stderr!r}")
        if done.returncode == 1:
            refused += 1
            expect(done.stderr.startswith(f"generate: {path}: ".encode()) and done.stderr.count(b"\n") == 1,
                   f"said {done.stderr!r}")

    hugging_face.write(path, Llama(rng, Bpe("gpt2", rng), ["f16"]), shards=2)
    expect(run(program, path, "--tokens 2", ["the cat"]).returncode == 0, "the whole folder is refused")
    for file in sorted(path.iterdir()):
        data = file.read_bytes()
        front = len(data) if file.suffix == ".json" else 1200
        for length in [0, 7, len(data) - 1, int(rng.integers(8, front))]:
            give(file.name, data[:length], True)
        for _ in range(12):
            changed = bytearray(data)
            changed[int(rng.integers(front))] = int(rng.integers(256))
            give(file.name, bytes(changed), False)
    for old, new in ((b'"head_dim": 32', b'"head_dim": -32'), (b"[0, ", b"[-2, "), (b"llama", b"gemma")):
        for file in sorted(path.iterdir()):
            if old in file.read_bytes():
                give(file.name, file.read_bytes().replace(old, new), True)
    index = (path / "model.safetensors.index.json").read_bytes()
    give("model.safetensors.index.json", index.replace(b"model-00001", b"../model-00001"), True)
    return refused


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    failed = False
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        total = 0
        for i, case in enumerate([*CASES, *FOLDERS]):
            try:
                plain = compare(arguments.program, folder, np.random.default_rng([arguments.seed, i]), case, 0)
                drafted = compare(arguments.program, folder, np.random.default_rng([arguments.seed, i]), case, 4)
                total += drafted[1]
                expect(plain[1] == 0 and plain[2] == drafted[2], "a draft changed what was generated")
                print(f"case {i}: logits differ by {max(plain[0], drafted[0]):.2f} of what is allowed, "
                      f"{drafted[1]} drafted tokens accepted")
            except Failed as e:
                failed = True
                print(f"case {i}, seed {arguments.seed}: {e}")
        try:
            expect(total > 0, "no drafted token was accepted")
            for broken in (broken_files, broken_folders):
                refused = broken(arguments.program, folder, np.random.default_rng(arguments.seed))
                print(f"{broken.__name__}: {refused} refused")
        except Failed as e:
            failed = True
            print(f"seed {arguments.seed}: {e}")
    sys.exit(failed)


if __name__ == "__main__":
    main()
