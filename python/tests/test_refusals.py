"""What is refused: the class of the error, its code, and that it names the argument."""

import numpy as np
import pytest

import attn

X = np.ones((1, 8, 2, 16), np.float32)
CU_SEQLENS = np.array([0, 2, 4, 6, 8], np.int32)

SEQUENCES = np.array([0, 2, 4, 8], np.int32)


def read_only():
    out = np.empty_like(X)
    out.flags.writeable = False
    return out


REFUSED = {
    "dtype": (lambda: attn.attention(X.astype(np.int16), X, X), "q has dtype int16; accepted"),
    "byte order": (lambda: attn.attention(X.astype(">f4"), X, X), "q has dtype >f4; accepted"),
    "dtypes that differ": (lambda: attn.attention(X, X.astype(np.float16), X), "k is f16"),
    "rank": (lambda: attn.attention(X[0], X, X), "q is f32.*with cu_seqlens_q, which is not given"),
    "rank above 4": (lambda: attn.attention(X[None], X, X), "q has 5 dimensions"),
    "a dtype of masks": (lambda: attn.attention(X > 0, X > 0, X > 0), r"q is bool\[1, 8, 2, 16\]"),
    "rank 0": (lambda: attn.attention(np.float32(1), X, X), "q has 0 dimensions"),
    "sizes": (lambda: attn.attention(X, X[..., :8], X), "k is f32.*accepted is"),
    "last dimension backwards": (lambda: attn.attention(X[..., ::-1], X, X), "stride 1"),
    "a stride of half an element": (
        lambda: attn.attention(np.lib.stride_tricks.as_strided(X, X.shape, (2, 2, 2, 4)), X, X),
        "q has a stride of 2 bytes",
    ),
    "read-only out": (lambda: attn.attention(X, X, X, out=read_only()), "out is a read-only"),
    "out that overlaps": (lambda: attn.attention(X, X, X, out=X), "overlap"),
    "shape of out": (lambda: attn.attention(X, X, X, out=X[:, :4].copy()), "o is f32"),
    "dtype of lengths": (
        lambda: attn.attention(X, X, X, seqused_k=np.array([8], np.float32)),
        "seqused_k is f32",
    ),
    "packed without lengths": (lambda: attn.attention(X[0], X[0], X[0], layout="thd"), "layout is"),
    "layout": (lambda: attn.attention(X, X, X, layout="bhs"), "layout is 'bhs'"),
    "lengths twice": (
        lambda: attn.attention(
            X, X, X, cu_seqlens_k=np.array([0, 8], np.int32), page_table=np.ones((1, 1), np.int32)
        ),
        "cu_seqlens_k and page_table",
    ),
    "window": (lambda: attn.attention(X, X, X, window=3), r"window is 3; accepted is \(left"),
    "softcap": (lambda: attn.attention(X, X, X, softcap="much"), "softcap is 'much'"),
    "window of floats": (lambda: attn.attention(X, X, X, window=(1.5, 0)), r"window is \(1.5, 0\)"),
    "window without end": (lambda: attn.attention(X, X, X, window=(float("inf"), 0)), "window is"),
    "text as a flag": (lambda: attn.attention(X, X, X, causal="false"), "causal is 'false'"),
    "softcap that is no number": (
        lambda: attn.attention(X, X, X, softcap=float("nan")),
        "softcap is nan; accepted is a finite",
    ),
    "text as rng": (lambda: attn.attention(X, X, X, dropout=0.1, rng="12"), "rng is '12'"),
    "half a thread": (lambda: attn.attention(X, X, X, threads=1.5), "threads is 1.5"),
    "a length past 31 bits": (lambda: attn.attention(X, X, X, max_seqlen_q=2**70), "max_seqlen_q"),
    "no backend": (lambda: attn.attention(X, X, X, backend=None), "backend is None"),
    "slopes of too few heads": (
        lambda: attn.attention(X, X, X, alibi=np.ones(1, np.float32)),
        r"alibi is f32\[1\].*accepted are f32\[heads_q\] and .*, here of 1 and 2",
    ),
    "slopes of too few heads in a batch": (
        lambda: attn.attention(X, X, X, alibi=np.ones((1, 3), np.float32)),
        r"alibi is f32\[1, 3\]",
    ),
    "slopes of another batch": (
        lambda: attn.attention(
            X[0],
            X[0],
            X[0],
            alibi=np.ones((2, 2), np.float32),
            cu_seqlens_q=SEQUENCES[:4],
            cu_seqlens_k=SEQUENCES[:4],
        ),
        r"alibi is f32\[2, 2\].*here of 3 and 2",
    ),
    "rank of alibi": (lambda: attn.attention(X, X, X, alibi=X[0, 0, 0, 0]), "alibi has shape"),
    "size of a mask": (
        lambda: attn.attention(X, X, X, mask=np.ones((7, 8), bool)),
        r"mask is bool\[7, 8\].*accepted are \[seqlen_q, seqlen_k\]",
    ),
    "size of a mask of packed sequences": (
        lambda: attn.attention(
            X[0],
            X[0],
            X[0],
            mask=np.ones((2, 2), bool),
            cu_seqlens_q=np.array([0, 3, 8], np.int32),
            cu_seqlens_k=np.array([0, 3, 8], np.int32),
        ),
        r"mask is bool\[2, 2\].*here of 2, 2, 5 or more and 5 or more",
    ),
    "heads of a mask of packed sequences": (
        lambda: attn.attention(
            X[0],
            X[0],
            X[0],
            mask=np.ones((2, 3, 8, 8), bool),
            cu_seqlens_q=np.array([0, 3, 8], np.int32),
            cu_seqlens_k=np.array([0, 3, 8], np.int32),
        ),
        r"mask is bool\[2, 3, 8, 8\]",
    ),
    "size of a mask of pages": (
        lambda: attn.attention(
            X,
            np.ones((2, 8, 2, 16), np.float32),
            np.ones((2, 8, 2, 16), np.float32),
            mask=np.ones((8, 9), bool),
            page_table=np.zeros((1, 2), np.int32),
            seqused_k=np.array([12], np.int32),
        ),
        r"mask is bool\[8, 9\].*and 12 or more",
    ),
    "softcap of several": (
        lambda: attn.attention(X, X, X, softcap=np.zeros(2)),
        r"softcap is array\(\[0., 0.\]\); accepted is a finite number",
    ),
    "dropout of several": (
        lambda: attn.attention(X, X, X, dropout=np.zeros(2), rng=1),
        r"dropout is array\(\[0., 0.\]\); accepted is a finite number",
    ),
    "negative softcap": (lambda: attn.attention(X, X, X, softcap=-1.0), "softcap"),
    "scale": (lambda: attn.attention(X, X, X, scale=float("inf")), "scale"),
    "dropout without rng": (lambda: attn.attention(X, X, X, dropout=0.1), "rng is None"),
    "dropout of 1": (lambda: attn.attention(X, X, X, dropout=1.0, rng=1), "dropout"),
    "negative seed": (lambda: attn.attention(X, X, X, dropout=0.1, rng=-1), "rng is -1"),
    "floats as rng": (
        lambda: attn.attention(X, X, X, dropout=0.1, rng=np.ones(2, np.float32)),
        r"rng is an array of float32 \(2,\)",
    ),
    "three numbers as rng": (
        lambda: attn.dropout_mask(np.ones((1, 1, 8, 8), bool), 0.1, np.ones(3, np.int64)),
        r"rng is an array of int64 \(3,\)",
    ),
    "text": (lambda: attn.attention(X, X, X, mask="key <"), "column 6"),
    "type of a mask": (lambda: attn.attention(X, X, X, mask="key + 1"), "boolean"),
    "parentheses": (lambda: attn.attention(X, X, X, mask="true)_causal_mask(true"), "parenthes"),
    "numbers as a mask": (lambda: attn.attention(X, X, X, mask=X[0, :, 0, :8]), "bool or uint8"),
    "rank of a mask": (
        lambda: attn.attention(X, X, X, mask=np.ones((1, 8, 8), bool)),
        r"bool \(1, 8, 8\)",
    ),
    "rank of a bias": (lambda: attn.attention(X, X, X, bias=X[0, :, 0]), "bias"),
    "rank of blocks": (lambda: attn.block_mask(np.ones(4, bool), 2, 2), "blocks has shape"),
    "size of a block": (lambda: attn.block_mask(np.ones((4, 4), bool), 0, 2), "block_q is 0"),
    "too few blocks of keys": (
        lambda: attn.attention(X, X, X, mask=attn.block_mask(np.ones((4, 3), bool), 2, 2)),
        r"'block_mask' .*u8\[4, 3\].*accepted is \[4, 4\]",
    ),
    "too few blocks of queries": (
        lambda: attn.attention(
            X, X, X, mask=attn.block_mask(np.ones((1, 1, 2, 2), bool), 3, 4, top_left=True)
        ),
        r"'block_mask' .*accepted is \[1, 2, 3, 2\]",
    ),
    "a buffer that nothing reads": (
        lambda: attn.attention(X, X, X, mask=attn.Formula("key < 3", w=X[0, 0, 0])),
        "w",
    ),
    "backend": (
        lambda: attn.attention(X, X, X, backend="gpu"),
        "backend is 'gpu'; accepted are 'auto', 'cpu', 'cuda', 'reference'",
    ),
    "algorithm": (lambda: attn.attention(X, X, X, algorithm="magic"), "magic"),
    "no parts": (lambda: attn.merge([]), "parts is empty"),
    "a gradient of nothing": (
        lambda: attn.attention_backward(X, X, X, X, X, X[..., 0], gradients=["w"]),
        "gradients names w",
    ),
    "backward of a forward plan": (
        lambda: attn.plan(X, X, X).backward(X, X, X, X, X, X),
        "backward=True",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_invalid(name):
    call, message = REFUSED[name]
    with pytest.raises(attn.InvalidArgument, match=message) as caught:
        call()
    assert caught.value.code == "invalid_argument"
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, attn.Error)
    assert isinstance(caught.value, RuntimeError)


def test_unsupported():
    pages, table = np.ones((1, 8, 2, 16), np.float32), np.zeros((1, 1), np.int32)
    out, lse = attn.attention(X, pages, pages, page_table=table, return_lse=True)
    with pytest.raises(attn.Unsupported, match="paged") as caught:
        attn.attention_backward(out, X, pages, pages, out, lse, page_table=table)
    assert caught.value.code == "unsupported"
    assert isinstance(caught.value, NotImplementedError)


def test_bases_of_the_others():
    assert issubclass(attn.OutOfMemory, MemoryError)
    assert issubclass(attn.FileError, OSError)
    for kind in (attn.Unavailable, attn.DeviceError, attn.InternalError):
        assert issubclass(kind, attn.Error)


@pytest.mark.parametrize("q", [None, [1.0], 3, "q"])
def test_no_array(q):
    with pytest.raises(TypeError, match="q is a .*; accepted are arrays"):
        attn.attention(q, X, X)


def test_a_window_of_floats_is_refused_after_one_of_equal_integers():
    attn.attention(X, X, X, window=(1, 0))
    with pytest.raises(attn.InvalidArgument, match=r"window is \(1.0, 0.0\)"):
        attn.attention(X, X, X, window=(1.0, 0.0))


@pytest.mark.parametrize("name", ["threads", "max_seqlen_q"])
@pytest.mark.parametrize("size", [2.0, np.float32(2)])
def test_a_float_is_refused_after_an_equal_integer(name, size):
    lengths = {"cu_seqlens_q": CU_SEQLENS, "cu_seqlens_k": CU_SEQLENS} if name != "threads" else {}
    x = X[0] if lengths else X
    for _ in range(2):
        attn.attention(x, x, x, **lengths, **{name: 2})
        with pytest.raises(
            attn.InvalidArgument, match=f"{name} is .*2.0.*; accepted is an integer"
        ):
            attn.attention(x, x, x, **lengths, **{name: size})


def test_unknown_keyword():
    with pytest.raises(TypeError, match=r"^attention\(\) got .* 'windows'"):
        attn.attention(X, X, X, windows=(1, 1))


def test_nothing_is_written_on_refusal():
    out = np.full_like(X, 7)
    with pytest.raises(attn.Error):
        attn.attention(X, X, X, out=out, seqused_k=np.array([99], np.int32))
    assert np.all(out == 7)
