"""Arrays of each library: which are taken, which are refused, and what comes out."""

import numpy as np
import pytest

import attn

RANDOM = np.random.default_rng(5)
X = RANDOM.standard_normal((2, 9, 3, 16)).astype(np.float32)
EXPECTED = attn.attention(X, X, X, causal=True)


class Exported:
    """An array that shows nothing but DLPack."""

    def __init__(self, array):
        self.array = array
        self.shape, self.dtype = array.shape, array.dtype

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()

    def __dlpack__(self, **arguments):
        return self.array.__dlpack__(**arguments)


class Old(Exported):
    """Before DLPack 1.0: no max_version, unversioned capsules."""

    def __dlpack__(self, stream=None):
        return self.array.__dlpack__()


@pytest.mark.parametrize("kind", [Exported, Old])
def test_dlpack(kind):
    x = kind(X)
    out = attn.attention(x, x, x, causal=True)
    np.testing.assert_array_equal(out, EXPECTED)
    into = np.full_like(X, np.nan)
    assert attn.attention(x, x, x, causal=True, out=kind(into)).array is into
    np.testing.assert_array_equal(into, EXPECTED)


def test_dlpack_that_is_read_only():
    if np.lib.NumpyVersion(np.__version__) < "2.1.0":
        pytest.skip("NumPy exports no read-only arrays before 2.1")
    frozen = X.copy()
    frozen.flags.writeable = False
    np.testing.assert_array_equal(attn.attention(Exported(frozen), X, X, causal=True), EXPECTED)
    with pytest.raises(attn.InvalidArgument, match="out is a read-only Exported"):
        attn.attention(X, X, X, out=Exported(frozen))


def test_dlpack_on_another_device():
    class Elsewhere(Exported):
        def __dlpack_device__(self):
            return (8, 0)  # Metal

        def __dlpack__(self, **arguments):
            raise BufferError("not here")

    with pytest.raises(attn.InvalidArgument, match=r"q is a Elsewhere .* \(not here\); accepted"):
        attn.attention(Elsewhere(X), X, X)


class Wrong(Exported):
    def __dlpack__(self, **arguments):
        return 5


def test_dlpack_that_gives_no_capsule():
    with pytest.raises(attn.InvalidArgument, match="q is a Wrong that shows no memory"):
        attn.attention(Wrong(X), X, X)


def test_strides():
    wide = RANDOM.standard_normal((2, 18, 6, 40)).astype(np.float32)
    view = wide[:, ::-2, ::2, 8:24]
    np.testing.assert_array_equal(
        attn.attention(view, view, view, causal=True),
        attn.attention(*[np.ascontiguousarray(view)] * 3, causal=True),
    )
    one = X[:, :, :1]
    many = np.broadcast_to(one, X.shape)
    np.testing.assert_array_equal(
        attn.attention(X, many, many, causal=True), attn.attention(X, one, one, causal=True)
    )


def added(table):
    return lambda s: s.score + table[s.key]


# What an array of numpy.ma hides would be read as if it were there.
MASKED = {
    "q": lambda masked: attn.attention(masked(X), X, X),
    "k": lambda masked: attn.attention(X, masked(X), X),
    "out": lambda masked: attn.attention(X, X, X, out=masked(X)),
    "mask": lambda masked: attn.attention(X, X, X, mask=masked(np.ones((9, 9), bool))),
    "bias": lambda masked: attn.attention(X, X, X, bias=masked(X[0, :, 0, :9])),
    "alibi": lambda masked: attn.attention(X, X, X, alibi=masked(X[0, 0, :, 0])),
    "seqused_k": lambda masked: attn.attention(X, X, X, seqused_k=masked(np.ones(2, np.int32))),
    "rng": lambda masked: attn.attention(X, X, X, dropout=0.1, rng=masked(np.ones(2, np.int64))),
    "block_mask": lambda masked: attn.attention(
        X, X, X, mask=attn.block_mask(masked(np.ones((9, 9), bool)), 1, 1)
    ),
    "_t0": lambda masked: attn.attention(X, X, X, score=added(masked(X[0, 0, 0]))),
    "w": lambda masked: attn.attention(X, X, X, score=attn.Formula("score*w", w=masked(1.0))),
    "scale": lambda masked: attn.attention(X, X, X, scale=masked(1.0)),
    "softcap": lambda masked: attn.attention(X, X, X, softcap=masked(1.0)),
    "causal": lambda masked: attn.attention(X, X, X, causal=masked(True)),
    "window": lambda masked: attn.attention(X, X, X, window=(masked(1), 0)),
    "threads": lambda masked: attn.attention(X, X, X, threads=masked(1)),
    "dropout": lambda masked: attn.attention(X, X, X, dropout=masked(0.1), rng=1),
    "kept": lambda masked: attn.dropout_mask(masked(np.ones((1, 1, 2, 2), bool)), 0.1, 1),
}


@pytest.mark.parametrize("name", MASKED)
@pytest.mark.parametrize("hides", [False, True])
def test_masked_arrays(name, hides):
    with pytest.raises(attn.InvalidArgument, match=f"^{name} is a Masked.* mask"):
        MASKED[name](lambda values: np.ma.masked_array(values, mask=hides))


@pytest.mark.filterwarnings("ignore::PendingDeprecationWarning")  # of numpy.matrix
def test_numpy_subclasses():
    class Subclass(np.ndarray):
        pass

    np.testing.assert_array_equal(attn.attention(X.view(Subclass), X, X, causal=True), EXPECTED)
    allowed = np.matrix(np.tri(9, dtype=bool))
    np.testing.assert_array_equal(attn.attention(X, X, X, mask=allowed), EXPECTED)
    table = np.matrix(np.zeros((9, 9)))
    np.testing.assert_array_equal(
        attn.attention(X, X, X, causal=True, score=lambda s: s.score + table[s.query, s.key]),
        EXPECTED,
    )


@pytest.mark.parametrize("dtype", [">f4", ">i4", ">i8"])
def test_bytes_in_another_order(dtype):
    array = np.arange(9).astype(dtype)
    with pytest.raises(attn.InvalidArgument, match=f"w has dtype {dtype}; accepted"):
        attn.attention(X, X, X, score=attn.Formula("score + w[key]", w=array))
    with pytest.raises(attn.TraceError, match=f"an array of dtype {dtype}"):
        attn.attention(X, X, X, score=lambda s: s.score + array[s.key])
    one = array[1].reshape(())  # a number is read by NumPy
    np.testing.assert_array_equal(
        attn.attention(X, X, X, causal=True, score=attn.Formula("score * w", w=one)), EXPECTED
    )


def test_read_only_inputs():
    frozen = X.copy()
    frozen.flags.writeable = False
    np.testing.assert_array_equal(attn.attention(frozen, frozen, frozen, causal=True), EXPECTED)


def test_results_follow_q():
    bfloat16 = pytest.importorskip("ml_dtypes").bfloat16
    for dtype in (np.float64, np.float32, np.float16, bfloat16):
        x = X.astype(dtype)
        out, lse = attn.attention(x, x, x, return_lse=True)
        assert out.dtype == dtype
        assert lse.dtype == (np.float64 if dtype == np.float64 else np.float32)


def test_no_rows():
    none = np.zeros((1, 0, 3, 16), np.float32)
    assert attn.attention(none, X[:1], X[:1]).shape == (1, 0, 3, 16)
    assert np.all(attn.attention(X[:1], none, none) == 0)


class TestTorch:
    @pytest.fixture
    def torch(self):
        return pytest.importorskip("torch")

    @pytest.fixture
    def x(self, torch):
        return torch.from_numpy(X)

    def test_results(self, torch, x):
        out, lse = attn.attention(x, x, x, causal=True, return_lse=True)
        assert isinstance(out, torch.Tensor)
        assert lse.dtype == torch.float32
        np.testing.assert_array_equal(out.numpy(), EXPECTED)
        half = x.to(torch.bfloat16)
        assert attn.attention(half, half, half).dtype == torch.bfloat16
        into = torch.full_like(x, torch.nan)
        assert attn.attention(x, x, x, causal=True, out=into) is into
        np.testing.assert_array_equal(into.numpy(), EXPECTED)

    def test_results_outlive_inputs(self, torch):
        out = attn.attention(*(torch.ones(1, 500, 4, 64) for _ in range(3)))
        for _ in range(20):
            torch.empty(1, 500, 4, 64).fill_(torch.nan)
        assert torch.all(out == 1)

    def test_gradients_are_not_dropped(self, torch, x):
        leaf = x.clone().requires_grad_()
        with pytest.raises(attn.InvalidArgument, match="k requires a gradient"):
            attn.attention(x, leaf, x)
        bias = torch.zeros(9, 9, requires_grad=True)
        with pytest.raises(attn.InvalidArgument, match="bias requires a gradient"):
            attn.attention(x, x, x, bias=bias)
        for call in (
            lambda: attn.attention(x, x, x, out=torch.empty_like(x).requires_grad_()),
            lambda: attn.merge([(leaf, torch.zeros(2, 3, 9))]),
            lambda: attn.attention_backward(leaf, x, x, x, x, torch.zeros(2, 3, 9)),
        ):
            with pytest.raises(attn.InvalidArgument, match="out requires a gradient"):
                call()
        for name in ("scale", "softcap"):
            number = {name: torch.tensor(0.5, requires_grad=True)}
            with pytest.raises(attn.InvalidArgument, match=f"{name} is a Tensor that requires"):
                attn.attention(x, x, x, **number)
            with torch.no_grad():
                attn.attention(x, x, x, **number)
        with torch.no_grad():
            out = attn.attention(leaf, leaf, torch.nn.Parameter(leaf), causal=True)
        np.testing.assert_array_equal(out.numpy(), EXPECTED)

    def test_no_memory(self, torch, x):
        from torch._subclasses import FakeTensorMode

        with pytest.raises(attn.InvalidArgument, match="q is a Tensor that shows no memory"):
            attn.attention(x.to("meta"), x, x)
        with FakeTensorMode():
            fake = torch.empty(2, 9, 3, 16)
        with pytest.raises(attn.InvalidArgument, match="q is a FakeTensor without data"):
            attn.attention(fake, x, x)
        with pytest.raises(attn.InvalidArgument, match="q is a Tensor that shows no memory"):
            attn.attention(x.to_sparse(), x, x)

    def test_dtypes(self, torch, x):
        with pytest.raises(attn.InvalidArgument, match=r"q has dtype torch\.int16"):
            attn.attention(x.to(torch.int16), x, x)
        with pytest.raises(attn.InvalidArgument, match=r"q has dtype torch\.float8"):
            attn.attention(x.to(torch.float8_e4m3fn), x, x)
        with pytest.raises(attn.InvalidArgument, match="seqused_k .*int16"):
            attn.attention(x, x, x, seqused_k=torch.tensor([3, 4], dtype=torch.int16))
        of_int64, of_int32 = (
            attn.attention(x, x, x, seqused_k=torch.tensor([3, 4], dtype=dtype))
            for dtype in (torch.int64, torch.int32)
        )
        assert torch.equal(of_int64, of_int32)

    def test_mask(self, torch, x):
        allowed = torch.ones(9, 9).tril() > 0
        np.testing.assert_array_equal(attn.attention(x, x, x, mask=allowed).numpy(), EXPECTED)


class TestJax:
    @pytest.fixture
    def jax(self):
        return pytest.importorskip("jax")

    def test_results(self, jax):
        x = jax.numpy.asarray(X)
        out, lse = attn.attention(x, x, x, causal=True, return_lse=True)
        assert isinstance(out, jax.Array)
        assert lse.shape == (2, 3, 9)
        np.testing.assert_array_equal(out, EXPECTED)

    def test_arrays_are_not_written(self, jax):
        x = jax.numpy.asarray(X)
        with pytest.raises(attn.InvalidArgument, match="out is a read-only"):
            attn.attention(x, x, x, out=jax.numpy.zeros_like(x))

    @pytest.mark.parametrize("name", ["q", "k", "v", "bias", "mask", "seqused_k", "ids"])
    def test_tracers(self, jax, name):
        """Each is refused by its own name, inside of jit, grad and vmap, and attn.jax is named."""
        x = jax.numpy.asarray(X)
        tensors = {"q": x, "k": x, "v": x}
        others = {
            "bias": jax.numpy.ones((9, 9)),
            "mask": jax.numpy.ones((9, 9), bool),
            "seqused_k": jax.numpy.full(2, 9, "int32"),
            "ids": jax.numpy.zeros(9, "int32"),
        }

        def function(traced):
            given = {**tensors, name: traced}
            if name == "ids":
                given = {**tensors, "mask": attn.Formula("ids[key] == 0", ids=traced)}
            return attn.attention(**given)

        message = f"^{name} is a .*Tracer, which shows no memory; accepted are .* in attn.jax"
        array = {**tensors, **others}[name]
        with pytest.raises(TypeError, match=message):
            jax.jit(function)(array)
        with pytest.raises(TypeError, match=message):
            jax.vmap(function)(array[None])
        if array.dtype == np.float32:
            with pytest.raises(TypeError, match=message):
                jax.grad(lambda x: function(x).sum())(array)

    @pytest.mark.parametrize("name", ["scale", "softcap", "rng", "causal", "threads", "window"])
    def test_traced_numbers(self, jax, name):
        x = jax.numpy.asarray(X)
        dropout = 0.5 if name == "rng" else 0.0

        def function(number):
            value = (number, 0) if name == "window" else number
            return attn.attention(x, x, x, dropout=dropout, **{name: value})

        with pytest.raises(attn.InvalidArgument, match=f"^{name} is .*Tracer.*; accepted is"):
            jax.jit(function)(3)

    def test_a_number_of_a_formula_keeps_no_derivative(self, jax):
        x = jax.numpy.asarray(X)

        def function(w):
            return attn.attention(x, x, x, score=attn.Formula("score * w", w=w)).sum()

        with pytest.raises(attn.InvalidArgument, match="^w is a .*Tracer that is traced by JAX"):
            jax.grad(function)(1.0)
        assert function(jax.numpy.float32(1)) == attn.attention(x, x, x).sum()

    def test_deleted(self, jax):
        x, gone = jax.numpy.asarray(X), jax.numpy.asarray(X) + 0
        gone.delete()
        with pytest.raises(attn.InvalidArgument, match="k is a ArrayImpl that shows no memory"):
            attn.attention(x, gone, x)
