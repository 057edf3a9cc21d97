#include "core/matmul.hpp"

#include <fmt/format.h>

#include <cmath>
#include <tuple>
#include <utility>

#include "attn/error.hpp"
#include "core/block_format.hpp"
#include "core/tensor/size.hpp"
#include "core/text/enum_names.hpp"
#include "core/validate/argument_check.hpp"
#include "core/validate/enumerator.hpp"

namespace attn {
namespace {

using core::ArgumentCheck;

constexpr core::EnumName<Activation> kActivations[] = {{Activation::none, "none"},
                                                       {Activation::relu, "relu"},
                                                       {Activation::gelu, "gelu"},
                                                       {Activation::gelu_tanh, "gelu_tanh"},
                                                       {Activation::silu, "silu"}};

constexpr core::EnumName<MatrixOrder> kMatrixOrders[] = {
    {MatrixOrder::row_major, "row_major"}, {MatrixOrder::column_major, "column_major"}};

constexpr core::EnumName<Float8> kFloat8s[] = {
    {Float8::none, "none"}, {Float8::e4m3, "e4m3"}, {Float8::e5m2, "e5m2"}};

constexpr core::EnumName<BlockFormat> kBlockFormats[] = {{BlockFormat::none, "none"},
                                                         {BlockFormat::q8_0, "q8_0"},
                                                         {BlockFormat::q4_0, "q4_0"},
                                                         {BlockFormat::q4_1, "q4_1"}};

constexpr core::EnumName<MaskedMatrix> kMaskedMatrices[] = {
    {MaskedMatrix::none, "none"}, {MaskedMatrix::b, "b"}, {MaskedMatrix::c, "c"}};

std::size_t index(std::int32_t rank, std::int32_t from_end) {
  return static_cast<std::size_t>(rank - from_end);
}

// Whether the elements lie in this order. A dimension of one element has no neighbours: its stride
// says nothing.
bool lies(const Tensor& t, MatrixOrder order) {
  const std::size_t d = index(t.rank, order == MatrixOrder::row_major ? 1 : 2);
  return t.strides[d] == 1 || t.shape[d] <= 1;
}

MatrixOrder order_of(const ArgumentCheck& check, const char* name, const Tensor& t) {
  for (const MatrixOrder order : {MatrixOrder::row_major, MatrixOrder::column_major}) {
    if (lies(t, order)) return order;
  }
  check.refuse(fmt::format("{} is {}; accepted is stride 1 in one of the last two dimensions", name,
                           to_string(t)));
}

void check_matrix(const ArgumentCheck& check, const char* name, const Tensor& t) {
  if (!t.given()) check.refuse(fmt::format("{} is not given; accepted is a matrix", name));
  check.view(name, t);
  if (t.rank != 2 && t.rank != 3) {
    check.refuse(fmt::format("{} is {}; accepted are tensors of rank 2 and 3", name, to_string(t)));
  }
}

std::int64_t batch_of(const Tensor& t) { return t.rank == 3 ? t.shape[0] : 1; }

void check_shape(const ArgumentCheck& check, const char* name, const Tensor& t, DType dtype,
                 std::int64_t batch, std::int64_t rows, std::int64_t columns) {
  const bool fits = t.dtype == dtype && batch_of(t) == batch && t.shape[index(t.rank, 2)] == rows &&
                    t.shape[index(t.rank, 1)] == columns;
  if (!fits) {
    check.refuse(fmt::format("{} is {}; accepted is {}[{}{}, {}]", name, to_string(t),
                             attn::name(dtype), batch == 1 ? "" : fmt::format("{}, ", batch), rows,
                             columns));
  }
}

}  // namespace

std::string_view name(Activation activation) noexcept {
  return core::name_of(kActivations, activation);
}
Activation parse_activation(std::string_view text) {
  return core::parse_name(kActivations, "activation", text);
}
std::string_view name(Float8 format) noexcept { return core::name_of(kFloat8s, format); }
std::string_view name(BlockFormat format) noexcept { return core::name_of(kBlockFormats, format); }
std::int64_t row_size(BlockFormat format, std::int64_t k) noexcept {
  return k / core::kBlockElements * core::block_bytes(format);
}
std::string_view name(MaskedMatrix masked) noexcept {
  return core::name_of(kMaskedMatrices, masked);
}
std::string_view name(MatrixOrder order) noexcept { return core::name_of(kMatrixOrders, order); }

double MatmulProblem::flops() const {
  return 2.0 * static_cast<double>(batch) * static_cast<double>(m) * static_cast<double>(n) *
         static_cast<double>(k);
}

std::string to_string(const MatmulProblem& p) {
  std::string text = fmt::format("b{}_m{}_n{}_k{}_{}", p.batch, p.m, p.n, p.k,
                                 p.float8 == Float8::none ? name(p.dtype) : name(p.float8));
  if (p.format_b != BlockFormat::none) {
    text += fmt::format("_b{}", name(p.format_b));
  } else if (p.type_of_b() != p.dtype) {
    text += fmt::format("_b{}", name(p.type_of_b()));
  }
  if (p.output != p.dtype) text += fmt::format("_c{}", name(p.output));
  for (const auto& [letter, order] :
       {std::pair{'a', p.order_a}, std::pair{'b', p.order_b}, std::pair{'c', p.order_c}}) {
    if (order == MatrixOrder::column_major) text += fmt::format("_{}col", letter);
  }
  if (p.scaled) text += "_scaled";
  if (p.bias) text += "_bias";
  if (p.accumulate) text += "_accumulate";
  if (p.activation != Activation::none) text += fmt::format("_{}", name(p.activation));
  if (p.masked != MaskedMatrix::none) text += fmt::format("_{}block{}", name(p.masked), p.block);
  return text;
}

MatmulProblem describe(const MatmulInputs& inputs, const Tensor& c, Activation activation) {
  const ArgumentCheck check(nullptr, c.device);
  for (const auto& [name, t] :
       {std::pair{"a", &inputs.a}, std::pair{"b", &inputs.b}, std::pair{"c", &c}}) {
    check_matrix(check, name, *t);
  }
  MatmulProblem p;
  p.batch = batch_of(c);
  p.m = c.shape[index(c.rank, 2)];
  p.n = c.shape[index(c.rank, 1)];
  p.k = inputs.a.shape[index(inputs.a.rank, 1)];
  p.dtype = inputs.a.dtype;
  if (inputs.b.dtype != p.dtype) p.dtype_b = inputs.b.dtype;
  p.output = c.dtype;
  p.order_a = order_of(check, "a", inputs.a);
  // Blocks lie along k, also where B is a single column.
  const bool blocks = inputs.b.dtype == DType::u8 && is_floating(p.dtype) &&
                      lies(inputs.b, MatrixOrder::column_major);
  p.order_b = blocks ? MatrixOrder::column_major : order_of(check, "b", inputs.b);
  p.order_c = order_of(check, "c", c);
  p.bias = inputs.bias.given();
  p.scaled = inputs.scale_a.given() || inputs.scale_b.given();
  p.activation = activation;
  return p;
}

namespace core {
namespace {

// Of a B in blocks.
void check_blocks(const ArgumentCheck& check, const MatmulProblem& p) {
  const std::string of = fmt::format("format_b is {}; accepted with ", name(p.format_b));
  const auto refuse = [&](const std::string& what) {
    check.refuse(fmt::format("{}{} (problem {})", of, what, to_string(p)));
  };
  if (p.dtype == DType::f64 || p.float8 != Float8::none || p.type_of_b() != DType::u8) {
    refuse(
        fmt::format("it are a dtype of f32, bf16 and f16 and a dtype_b of u8, which are {} and {}",
                    name(p.dtype), name(p.type_of_b())));
  }
  if (p.order_b != MatrixOrder::column_major || p.order_c != MatrixOrder::row_major) {
    refuse(fmt::format("it are a column_major b and a row_major c, which are {} and {}",
                       name(p.order_b), name(p.order_c)));
  }
  if (p.k % kBlockElements != 0) {
    refuse(fmt::format("it is a k that {} divides, which is {}", kBlockElements, p.k));
  }
  if (p.masked != MaskedMatrix::none) {
    refuse(fmt::format("it is no mask, and masked is {}", name(p.masked)));
  }
}

}  // namespace

MatrixView::MatrixView(const Tensor& t)
    : data(static_cast<std::byte*>(t.data)),
      dtype(t.dtype),
      batch_stride(t.rank == 3 ? t.strides[0] : 0),
      row_stride(t.strides[index(t.rank, 2)]),
      column_stride(t.strides[index(t.rank, 1)]) {}

MatmulOperands::MatmulOperands(const MatmulProblem& p, const MatmulInputs& inputs,
                               const Tensor& c_tensor)
    : batch(p.batch),
      m(p.m),
      n(p.n),
      k(p.k),
      a(inputs.a),
      b(inputs.b),
      c(c_tensor),
      bias(p.bias ? static_cast<const float*>(inputs.bias.data) : nullptr),
      bias_stride(p.bias ? inputs.bias.strides[0] : 0),
      bias_of_rows(p.order_c == MatrixOrder::column_major),
      scale_a(p.scaled ? static_cast<const float*>(inputs.scale_a.data) : nullptr),
      scale_b(p.scaled ? static_cast<const float*>(inputs.scale_b.data) : nullptr),
      activation(p.activation),
      mask(p, inputs),
      accumulate(p.accumulate),
      format_b(p.format_b) {
  // The dimension whose neighbours lie together has stride 1, also where it has one element.
  const auto set = [](MatrixView& x, MatrixOrder order) {
    (order == MatrixOrder::row_major ? x.column_stride : x.row_stride) = 1;
  };
  set(a, p.order_a);
  set(b, p.order_b);
  set(c, p.order_c);
  if (!bias_of_rows) return;
  std::swap(m, n);
  std::swap(a, b);
  for (MatrixView* x : {&a, &b, &c}) std::swap(x->row_stride, x->column_stride);
  std::swap(mask.row_stride, mask.column_stride);
  if (mask.of == BlockMaskView::Of::b) mask.of = BlockMaskView::Of::a;
}

BlockMaskView::BlockMaskView(const MatmulProblem& p, const MatmulInputs& inputs) {
  if (p.masked == MaskedMatrix::none) return;
  of = p.masked == MaskedMatrix::b ? Of::b : Of::c;
  data = static_cast<const std::uint8_t*>(inputs.block_mask.data);
  block = p.block;
  row_stride = inputs.block_mask.strides[0];
  column_stride = inputs.block_mask.strides[1];
}

double activate(Activation activation, double x) {
  switch (activation) {
    case Activation::none:
      return x;
    case Activation::relu:
      return x < 0 ? 0 : x;
    case Activation::gelu:
      return x * 0.5 * (1 + std::erf(x * 0.70710678118654752));
    case Activation::gelu_tanh:
      return x * 0.5 * (1 + std::tanh(0.79788456080286536 * (x + 0.044715 * x * x * x)));
    case Activation::silu:
      return x / (1 + std::exp(-x));
  }
  return x;
}

void validate_matmul(const MatmulProblem& p) {
  const ArgumentCheck check;
  for (const auto& [name, size] : {std::pair{"batch", p.batch}, std::pair{"m", p.m},
                                   std::pair{"n", p.n}, std::pair{"k", p.k}}) {
    constexpr std::int64_t kMost = (std::int64_t{1} << 31) - 1024;
    if (size < 0 || size > kMost) {
      check.refuse(fmt::format("{} is {}; accepted are 0 to {} (problem {})", name, size, kMost,
                               to_string(p)));
    }
  }
  check_enumerator(check, "order_a", p.order_a, "MatrixOrder");
  check_enumerator(check, "order_b", p.order_b, "MatrixOrder");
  check_enumerator(check, "order_c", p.order_c, "MatrixOrder");
  check_enumerator(check, "activation", p.activation, "Activation");
  check_enumerator(check, "float8", p.float8, "Float8");
  check_enumerator(check, "masked", p.masked, "MaskedMatrix");
  check_enumerator(check, "format_b", p.format_b, "BlockFormat");
  const bool float8 = p.float8 != Float8::none;
  if (float8 ? p.dtype != DType::u8 : !is_floating(p.dtype)) {
    check.refuse(
        fmt::format("dtype is {} and float8 {}; accepted are f32, bf16, f16 and f64 with "
                    "none, and u8 with e4m3 and e5m2 (problem {})",
                    name(p.dtype), name(p.float8), to_string(p)));
  }
  if (p.accumulate && float8) {
    check.refuse(
        fmt::format("accumulate is true; accepted of float8 is false (problem {})", to_string(p)));
  }
  const DType b = p.type_of_b();
  if (p.format_b != BlockFormat::none) {
    check_blocks(check, p);
  } else if (b != p.dtype && (p.dtype != DType::f32 || (b != DType::bf16 && b != DType::f16))) {
    check.refuse(fmt::format("dtype of b is {}; accepted are {}{} (problem {})", name(b),
                             name(p.dtype), p.dtype == DType::f32 ? ", bf16 and f16" : "",
                             to_string(p)));
  }
  if (p.scaled && !float8) {
    check.refuse(
        fmt::format("scale_a or scale_b is given; accepted are none where float8 is none "
                    "(problem {})",
                    to_string(p)));
  }
  const bool masked = p.masked != MaskedMatrix::none;
  if (masked ? p.block < 1 : p.block != 0) {
    check.refuse(fmt::format("block is {}; accepted is {} (problem {})", p.block,
                             masked ? "1 and up" : "0 where no matrix is masked", to_string(p)));
  }
  if (float8) {
    if (is_floating(p.output) && p.output != DType::f64) return;
    check.refuse(fmt::format("output is {}; accepted of float8 are bf16, f16 and f32 (problem {})",
                             name(p.output), to_string(p)));
  }
  if (p.output != p.dtype && (p.output != DType::f32 || p.dtype == DType::f64)) {
    check.refuse(fmt::format(
        "output is {}; accepted are {}{} (problem {})", name(p.output), name(p.dtype),
        p.dtype == DType::f64 || p.dtype == DType::f32 ? "" : " and f32", to_string(p)));
  }
}

void validate_matmul(const MatmulProblem& p, const MatmulInputs& inputs, const Tensor& c,
                     Device device) {
  const ArgumentCheck check(nullptr, device);
  for (const auto& [name, t] :
       {std::pair{"a", &inputs.a}, std::pair{"b", &inputs.b}, std::pair{"c", &c}}) {
    check_matrix(check, name, *t);
  }
  check_shape(check, "a", inputs.a, p.dtype, p.batch, p.m, p.k);
  const bool blocks = p.format_b != BlockFormat::none;
  check_shape(check, "b", inputs.b, p.type_of_b(), p.batch,
              blocks ? row_size(p.format_b, p.k) : p.k, p.n);
  check_shape(check, "c", c, p.output, p.batch, p.m, p.n);
  for (const auto& [name, t, order] :
       {std::tuple{"a", &inputs.a, p.order_a}, std::tuple{"b", &inputs.b, p.order_b},
        std::tuple{"c", &c, p.order_c}}) {
    if (!lies(*t, order)) {
      check.refuse(fmt::format("{} is {}; accepted is {} (problem {})", name, to_string(*t),
                               attn::name(order), to_string(p)));
    }
  }
  if (p.bias != inputs.bias.given()) {
    check.refuse(fmt::format("bias is {}given; accepted is {} (problem {})", p.bias ? "not " : "",
                             p.bias ? "f32 [n]" : "none", to_string(p)));
  }
  if (p.bias) {
    check.tensor("bias", inputs.bias, p.dtype == DType::f64 ? DType::f64 : DType::f32, {p.n});
  }
  for (const auto& [name, t] :
       {std::pair{"scale_a", &inputs.scale_a}, std::pair{"scale_b", &inputs.scale_b}}) {
    if (p.scaled != t->given()) {
      check.refuse(fmt::format("{} is {}given; accepted is {} (problem {})", name,
                               p.scaled ? "not " : "", p.scaled ? "f32 [1]" : "none",
                               to_string(p)));
    }
    if (p.scaled) check.tensor(name, *t, DType::f32, {1});
  }
  if ((p.masked != MaskedMatrix::none) != inputs.block_mask.given()) {
    check.refuse(
        fmt::format("block_mask is {}given, masked is {}; accepted are a block_mask and the matrix "
                    "that it is of, or neither (problem {})",
                    inputs.block_mask.given() ? "" : "not ", attn::name(p.masked), to_string(p)));
  }
  if (p.masked != MaskedMatrix::none) {
    const std::int64_t rows = p.masked == MaskedMatrix::b ? p.k : p.m;
    const auto blocks = [&](std::int64_t size) { return divide_up(size, p.block).value(); };
    check.tensor("block_mask", inputs.block_mask, DType::u8, {blocks(rows), blocks(p.n)});
  }
  const NamedTensor written[] = {{"c", c}};
  const NamedTensor read[] = {{"a", inputs.a},
                              {"b", inputs.b},
                              {"bias", inputs.bias},
                              {"scale_a", inputs.scale_a},
                              {"scale_b", inputs.scale_b},
                              {"block_mask", inputs.block_mask}};
  check.disjoint(written, read);
}

}  // namespace core
}  // namespace attn
