#include "cuda/codegen/buffer_gradients.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "core/expr/build.hpp"
#include "cuda/codegen/expression_buffers.hpp"
#include "cuda/codegen/expression_functions.hpp"
#include "cuda/device/expr/gradient_sums.cuh"

namespace attn::cuda {
namespace {

using expr::Expr;
using expr::Op;

// The derivative of tanh whose digits are all right; slopes of sums over many scores need them.
constexpr expr::TanhSlope kForm = expr::TanhSlope::exponentials;

// Which element of a buffer a load reads, where every query and key has one of its own.
struct Reads {
  bool batch = false, head = false, position = false;
  bool operator==(const Reads&) const = default;
};
std::optional<Reads> own_element(const Expr& load, const Tensor& tensor) {
  int batch = 0, head = 0, query = 0, position = 0, key = 0;
  for (std::size_t d = 0; d < load.node().args.size(); ++d) {
    if (tensor.shape[d] == 1) continue;  // takes any index
    const Expr& index = load.node().args[d];
    if (expr::is_position(index)) {
      ++position;
      continue;
    }
    const Op op = index.node().op;
    if (op != Op::batch && op != Op::head && op != Op::query && op != Op::key) return {};
    ++(op == Op::batch ? batch : op == Op::head ? head : op == Op::query ? query : key);
  }
  if (query + position != 1 || key != 1 || batch > 1 || head > 1) return {};
  return Reads{batch == 1, head == 1, position == 1};
}

struct Load {
  std::size_t name = 0;  // index into the names
  bool own = false;
  expr::LoadDerivative derivative;
};
std::vector<Load> loads_of(const Expr& score, const std::vector<std::string>& names) {
  const OwnElements own = own_elements(score);
  std::vector<Load> loads;
  for (std::size_t i = 0; i < names.size(); ++i) {
    for (expr::LoadDerivative& d : expr::load_derivatives(score, names[i], kForm)) {
      loads.push_back({i, own.has(names[i]), std::move(d)});
    }
  }
  return loads;
}

std::string constants(const OwnElements& own, int loads, int elements) {
  std::string text = "  static constexpr bool kHasSlope = false;\n";
  const auto number = [&](std::string_view name, int value) {
    text += fmt::format("  static constexpr int {} = {};\n", name, value);
  };
  const auto flag = [&](std::string_view name, bool value) {
    text += fmt::format("  static constexpr bool {} = {};\n", name, elements > 0 && value);
  };
  // Arrays have one element at least. Where no load has a slope, as of a buffer that only a
  // condition reads, all of it stays 0.
  number("kLoads", std::max(loads, 1));
  number("kElements", elements);
  number("kElementsOr1", std::max(elements, 1));
  flag("kReadsBatch", own.reads_batch);
  flag("kReadsHead", own.reads_head);
  flag("kByPosition", own.by_position);
  return text;
}

// Which index of an element of OwnElements is the key; a dimension of size 1 takes any index.
std::size_t key_dimension(const Expr& load) {
  const auto& args = load.node().args;
  const auto& shape = load.node().buffer->tensor().shape;
  std::size_t d = 0;
  while (shape[d] == 1 || args[d].node().op != Op::key) ++d;
  return d;
}

constexpr std::string_view kNoDot =
    "    [[maybe_unused]] constexpr float dot = 0;  // no index reads it\n";

constexpr std::size_t kSplitsBytes = 8;  // an int, before members of 8 bytes

}  // namespace

bool OwnElements::has(std::string_view name) const noexcept {
  return std::ranges::find(names, name) != names.end();
}

OwnElements own_elements(const Expr& score) {
  OwnElements own;
  if (score.empty()) return own;
  std::optional<Reads> of_all;
  for (const auto& buffer : expression_buffers({}, score)) {
    if (!is_floating(buffer->tensor().dtype) || expr::is_scalar(*buffer)) continue;
    const auto loads = expr::load_derivatives(score, buffer->name(), kForm);
    if (loads.size() != 1) continue;
    const std::optional<Reads> reads = own_element(loads.front().load, buffer->tensor());
    if (!reads || (of_all && *of_all != *reads)) continue;
    of_all = reads;
    own.names.push_back(buffer->name());
  }
  if (of_all) {
    own.reads_batch = of_all->batch;
    own.reads_head = of_all->head;
    own.by_position = of_all->position;
  }
  return own;
}

bool covers_elements(const Problem& p, std::string_view name) {
  if (p.batch == 0) return false;
  const auto loads = expr::load_derivatives(p.score, name);
  const Expr& load = loads.front().load;
  const Tensor& tensor = load.node().buffer->tensor();
  const auto extent = [&](const Expr& index) -> std::int64_t {
    if (expr::is_position(index)) return p.seqlen_k;
    const Op op = index.node().op;
    return op == Op::batch   ? p.batch
           : op == Op::head  ? p.heads_q
           : op == Op::query ? p.seqlen_q
                             : p.seqlen_k;
  };
  for (std::size_t d = 0; d < load.node().args.size(); ++d) {
    if (tensor.shape[d] != 1 && tensor.shape[d] > extent(load.node().args[d])) return false;
  }
  return true;
}

std::string_view sum_type(bool exact) noexcept { return exact ? "Superaccumulator" : "double"; }
std::size_t sum_bytes(bool exact) noexcept {
  return exact ? sizeof(device::Superaccumulator) : sizeof(double);
}

std::string print_buffer_gradients(const Expr& score, const std::vector<std::string>& names,
                                   bool exact, const PrintedBuffers& printed) {
  const std::vector<Load> loads = loads_of(score, names);
  std::string members, functions, add, flush, store, row;
  int in_memory = 0, elements = 0;
  for (std::size_t i = 0; i < loads.size(); ++i) {
    const auto& [load, derivative] = loads[i].derivative;
    functions += value_function(fmt::format("factor_{}", i), derivative);
    std::string indices;
    for (std::size_t d = 0; d < load.node().args.size(); ++d) {
      functions += value_function(fmt::format("index_{}_{}", i, d), load.node().args[d]);
      indices += fmt::format(", index_{}_{}({})", i, d, kArguments);
    }
    if (loads[i].own) {
      members += fmt::format("  ElementGradient element_{};\n", i);
      // A score that is hidden has no share, also where its factor is infinite or NaN.
      add += fmt::format("    {}elements[{}] += d_t * factor_{}({});\n",
                         expr::is_constant(derivative) ? "" : "if (d_t != 0) ", elements, i,
                         kArguments);
      store += fmt::format("    store_element(element_{}, split, elements[{}]{});\n", i, elements,
                           indices);
      row = fmt::format("    return element_row<{}>(element_{}, split{});\n", key_dimension(load),
                        i, indices);
      ++elements;
    } else {
      members += fmt::format("  GradientSums<{}> sums_{};\n", sum_type(exact), i);
      add += fmt::format("    add_to(pending[{0}], sums_{1}, d_t * factor_{1}({2}){3});\n",
                         in_memory, i, kArguments, indices);
      flush += fmt::format("    flush_warp_to(pending[{}], sums_{});\n", in_memory, i);
      ++in_memory;
    }
  }
  std::string body = constants(own_elements(score), in_memory, elements);
  body += views_text(score, printed) + "  int splits, unused;\n" + members + functions;
  const std::string pending = "PendingSum (&pending)[kLoads]";
  body += function(
      "void", "add",
      fmt::format("{}, float (&elements)[kElementsOr1], float d_t, {}", pending, kPoint), add);
  body += function("void", "flush", pending, flush);
  body += function("void", "store",
                   fmt::format("const float (&elements)[kElementsOr1], int split, {}",
                               kPoint.substr(kPoint.find("int query"))),
                   std::string(kNoDot) + store);
  if (elements == 1) {
    body += function("ElementRow", "row",
                     "int split, int query, int batch, int head, int seqlen_q, int seqlen_k",
                     std::string(kNoDot) + "    [[maybe_unused]] constexpr int key = 0;\n" + row);
  }
  return struct_text("BufferGradients", body);
}

BufferGradientsPack::BufferGradientsPack(const Expr& score, const std::vector<std::string>& names)
    : views_(expression_buffers({}, score)), size_(buffer_gradients_bytes(score, names)) {
  const auto buffers = expression_buffers({}, score);
  for (const Load& load : loads_of(score, names)) {
    places_.push_back({load.name,
                       *std::ranges::find_if(
                           buffers, [&](const auto& b) { return b->name() == names[load.name]; }),
                       load.own});
  }
}

void BufferGradientsPack::pack(std::span<const BufferTarget> targets, int splits,
                               const expr::Bindings& bindings, std::byte* to) const {
  views_.pack(bindings, to);
  to += views_.size();
  const std::array<int, 2> numbers{splits, 0};
  static_assert(sizeof(numbers) == kSplitsBytes);
  std::memcpy(to, numbers.data(), kSplitsBytes);
  to += kSplitsBytes;
  const auto put = [&](const auto& packed) {
    std::memcpy(to, &packed, sizeof(packed));
    to += sizeof(packed);
  };
  for (const Place& place : places_) {
    const Tensor& tensor = described(*place.buffer, bindings);
    const BufferTarget& target = targets[place.name];
    std::array<long long, 4> sizes{1, 1, 1, 1};
    std::copy_n(tensor.shape.begin(), tensor.rank, sizes.begin());
    if (place.own) {
      device::ElementGradient packed{target.elements, {}, {}, target.split_stride};
      std::ranges::copy(sizes, packed.sizes);
      std::ranges::copy(target.strides, packed.strides);
      put(packed);
    } else {
      device::GradientSums<void> packed{target.sums, {}};
      std::ranges::copy(sizes, packed.sizes);
      put(packed);
    }
  }
}

std::size_t buffer_gradients_bytes(const Expr& score, const std::vector<std::string>& names) {
  std::size_t bytes = buffers_bytes(expression_buffers({}, score)) + kSplitsBytes;
  for (const Load& load : loads_of(score, names)) {
    bytes += load.own ? sizeof(device::ElementGradient) : sizeof(device::GradientSums<void>);
  }
  return bytes;
}

}  // namespace attn::cuda
