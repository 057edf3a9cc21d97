"""A small random Llama model, its forward pass in float64, and its tokenizers."""
import re

import numpy as np

import gguf

# The regular expressions of tokenizer.ggml.pre, with Python's \w and \d for Unicode's categories.
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?[^\W\d_]+| ?\d+| ?(?:[^\s\w]|_)+|\s+(?!\S)|\s+"
LLAMA = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|(?:[^\r\n\w]|_)?[^\W\d_]+|\d{1,3}"
         r"| ?(?:[^\s\w]|_)+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
CORPUS = "the cat sat on the mat and the dog's hat, 1234 times or 56;  They'LL see, don't \r\n\n  the end.\t[a_b];"


def byte_characters():
    """How GPT-2 writes bytes."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [b for b in range(256) if b not in printable]
    return {**{b: chr(b) for b in printable}, **{b: chr(256 + i) for i, b in enumerate(rest)}}


class Bpe:
    """Merges are neighbours drawn from text that is not split into words, in any order: where words
    end, and which pair comes first, changes tokens."""

    def __init__(self, pre, rng):
        self.pre, self.written = pre, byte_characters()
        self.merges = []
        for _ in range(50):
            symbols = self.merge(CORPUS)
            at = int(rng.integers(len(symbols) - 1))
            self.merges.append((symbols[at], symbols[at + 1]))
        rng.shuffle(self.merges)
        self.merges = list(dict.fromkeys(map(tuple, self.merges)))
        merged = ["".join(m) for m in self.merges]
        self.tokens = list(dict.fromkeys([*self.written.values(), *merged, "<|end|>", "<|turn|>"]))

    def words(self, text):
        if self.pre == "smollm":
            return [w for part in re.split(r"([0-9])", text) for w in re.findall(GPT2, part)]
        return re.findall(LLAMA if self.pre == "llama-bpe" else GPT2, text)

    def merge(self, word):
        symbols = [self.written[b] for b in word.encode()]
        ranks = {pair: i for i, pair in enumerate(self.merges)}
        while True:
            found = [(ranks[pair], i) for i, pair in enumerate(zip(symbols, symbols[1:])) if pair in ranks]
            if not found:
                return symbols
            i = min(found)[1]
            symbols[i:i + 2] = [symbols[i] + symbols[i + 1]]

    def encode(self, text):
        ids = []
        for part in re.split(r"(<\|turn\|>)", text):
            if part == "<|turn|>":
                ids.append(self.tokens.index(part))
            else:
                ids += [self.tokens.index(s) for word in self.words(part) for s in self.merge(word)]
        return ids

    def decode(self, ids):
        back = {c: b for b, c in self.written.items()}
        return b"".join(bytes(back[c] for c in self.tokens[i]) for i in ids if i < len(self.tokens) - 2)

    def values(self):
        n = len(self.tokens)
        return {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": self.pre,
                "tokenizer.ggml.tokens": self.tokens,
                "tokenizer.ggml.token_type": [1] * (n - 2) + [3, 3],
                "tokenizer.ggml.merges": [" ".join(m) for m in self.merges],
                "tokenizer.ggml.eos_token_id": n - 2, "tokenizer.ggml.add_bos_token": False}


class SentencePiece:
    def __init__(self):
        pieces = ["\u2581", *"acdehimnorst,.", "\u2581t", "th", "he", "\u2581the", "at", "\u2581c", "\u2581cat",
                  "\u2581s", "sat", "on", "\u2581on", "ma", "mat", "an", "and"]
        self.tokens = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256)), *pieces]
        self.scores = [0.0] * 259 + [-float(i) for i in range(len(pieces))]

    def encode(self, text):
        symbols = list(" " + text)
        symbols = ["\u2581" if s == " " else s for s in symbols]
        while True:
            pairs = [(self.scores[self.tokens.index(a + b)], -i) for i, (a, b)
                     in enumerate(zip(symbols, symbols[1:])) if a + b in self.tokens]
            if not pairs:
                break
            i = -max(pairs)[1]
            symbols[i:i + 2] = [symbols[i] + symbols[i + 1]]
        ids = [1]
        for s in symbols:
            ids += [self.tokens.index(s)] if s in self.tokens else [3 + b for b in s.encode()]
        return ids

    def decode(self, ids):
        return b"".join(b"" if i < 3 else bytes([i - 3]) if i < 259
                        else self.tokens[i].replace("\u2581", " ").encode() for i in ids)

    def values(self):
        return {"tokenizer.ggml.model": "llama", "tokenizer.ggml.tokens": self.tokens,
                "tokenizer.ggml.scores": self.scores,
                "tokenizer.ggml.token_type": [3] * 3 + [6] * 256 + [1] * (len(self.tokens) - 259),
                "tokenizer.ggml.bos_token_id": 1, "tokenizer.ggml.eos_token_id": 2}


class Llama:
    """kinds: how matrices are stored, in turn. rope: how many dimensions of a head rotate."""

    def __init__(self, rng, tokenizer, kinds, *, layers=2, dim=64, heads=4, heads_k=2, head_dim=32,
                 inner=96, rope=32, tied=True, factors=False, linear=1.0):
        self.tokenizer, self.layers, self.heads, self.heads_k = tokenizer, layers, heads, heads_k
        self.head_dim, self.rope = head_dim, rope
        vocabulary = len(tokenizer.tokens)
        shapes = {"token_embd": (vocabulary, dim)}
        for i in range(layers):
            shapes |= {f"blk.{i}.attn_q": (heads * head_dim, dim), f"blk.{i}.attn_k": (heads_k * head_dim, dim),
                       f"blk.{i}.attn_v": (heads_k * head_dim, dim), f"blk.{i}.attn_output": (dim, heads * head_dim),
                       f"blk.{i}.ffn_gate": (inner, dim), f"blk.{i}.ffn_up": (inner, dim),
                       f"blk.{i}.ffn_down": (dim, inner)}
        if not tied:
            shapes["output"] = (vocabulary, dim)
        self.tensors = {}
        for i, (name, shape) in enumerate(shapes.items()):
            gain = 1.5
            array = rng.standard_normal(shape) * gain / np.sqrt(shape[1])
            self.tensors[name + ".weight"] = (array.astype(np.float32), kinds[i % len(kinds)])
        for name in ["output_norm", *(f"blk.{i}.{n}_norm" for i in range(layers) for n in ("attn", "ffn"))]:
            self.tensors[name + ".weight"] = (rng.uniform(0.5, 1.5, dim).astype(np.float32), "f32")
        self.factors = np.ones(rope // 2)
        if factors is not False:
            self.factors = np.linspace(1, 4, rope // 2).astype(np.float32) if factors is True else factors
            self.tensors["rope_freqs.weight"] = (self.factors, "f32")
        self.linear = linear
        self.values = {"general.architecture": "llama", "llama.block_count": layers,
                       "llama.embedding_length": dim, "llama.feed_forward_length": inner,
                       "llama.attention.head_count": heads, "llama.attention.head_count_kv": heads_k,
                       "llama.attention.key_length": head_dim, "llama.attention.value_length": head_dim,
                       "llama.rope.dimension_count": rope, "llama.rope.freq_base": 500.0,
                       "llama.attention.layer_norm_rms_epsilon": 1e-5, **tokenizer.values()}
        if linear != 1:
            self.values |= {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": linear}

    def file(self):
        return gguf.write(self.values, self.tensors)

    def logits(self, ids, cache, weights):
        """[len(ids), vocabulary] in float64, of weights and a cache that are rounded as the engine
        rounds them. weights: a kind, or None for what the file has."""
        def matrix(name, rounds=True):
            array, kind = self.tensors[name + ".weight"]
            value = gguf.store(array, kind)[1]
            if rounds and weights:
                value = gguf.store(value, weights)[1]
            return value.astype(np.float64)

        def norm(x, name):
            return x / np.sqrt((x * x).mean(1, keepdims=True) + np.float32(1e-5)) * matrix(name, rounds=False)

        n, d = len(ids), self.head_dim
        angles = np.arange(n)[:, None] * 500.0 ** (-2 * np.arange(self.rope // 2) / self.rope)
        turn = np.exp(1j * angles / self.factors / self.linear)[:, None]

        def rotate(x):
            pairs = x[..., :self.rope].reshape(n, -1, self.rope // 2, 2)
            turned = (pairs[..., 0] + 1j * pairs[..., 1]) * turn
            rotated = np.stack([turned.real, turned.imag], -1).reshape(n, -1, self.rope)
            return np.concatenate([rotated, x[..., self.rope:]], -1)

        x = matrix("token_embd", rounds=False)[ids]
        for i in range(self.layers):
            block = f"blk.{i}."
            h = norm(x, block + "attn_norm")
            q = rotate((h @ matrix(block + "attn_q").T).reshape(n, self.heads, d))
            k = rotate((h @ matrix(block + "attn_k").T).reshape(n, self.heads_k, d))
            v = (h @ matrix(block + "attn_v").T).reshape(n, self.heads_k, d)
            k, v = (np.repeat(gguf.store(t, cache)[1], self.heads // self.heads_k, 1) for t in (k, v))
            s = np.einsum("ihd,jhd->hij", q, k) / np.sqrt(d)
            s = np.where(np.tril(np.ones((n, n), bool)), s, -np.inf)
            p = np.exp(s - s.max(-1, keepdims=True))
            o = np.einsum("hij,jhd->ihd", p / p.sum(-1, keepdims=True), v)
            x = x + o.reshape(n, -1) @ matrix(block + "attn_output").T
            h = norm(x, block + "ffn_norm")
            gate = h @ matrix(block + "ffn_gate").T
            x = x + (gate / (1 + np.exp(-gate)) * (h @ matrix(block + "ffn_up").T)) @ matrix(block + "ffn_down").T
        output = "output" if "output.weight" in self.tensors else "token_embd"
        return norm(x, "output_norm") @ matrix(output).T
