#include "core/text/shorthands.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "core/expr/build.hpp"

namespace attn::core {

using expr::Expr;
using expr::Node;
using expr::Op;

expr::Expr rename_buffer(const Expr& e, std::string_view from, const std::string& to) {
  if (from == to) return e;
  return expr::rewrite(e, [&](const Expr& part, const std::vector<Expr>& args) {
    const auto& buffer = part.node().buffer;
    if (args.empty() || buffer == nullptr || buffer->name() != from) {
      return expr::rebuild(part, args);
    }
    // The buffer before keeps the memory.
    return expr::load(std::make_shared<const expr::Buffer>(to, buffer->tensor(), buffer), args);
  });
}

namespace {

using Value = std::optional<std::string>;

constexpr std::size_t kMostInts = 16;  // more than any shorthand has

void collect_constants(const Expr& e, std::vector<std::int32_t>& ints, std::vector<float>& floats) {
  const Node& node = e.node();
  if (node.op == Op::constant && node.type == expr::Type::int32) {
    const auto negated = static_cast<std::int32_t>(0u - static_cast<std::uint32_t>(node.int_value));
    ints.insert(ints.end(), {node.int_value, negated});
  }
  if (node.op == Op::constant && node.type == expr::Type::float32) {
    floats.push_back(node.float_value);
  }
  for (const Expr& argument : node.args) collect_constants(argument, ints, floats);
}

// Whether `e` is `pattern` with something in the place of score, which goes to `inner`.
bool matches(const Expr& pattern, const Expr& e, Expr& inner) {
  const Node& a = pattern.node();
  const Node& b = e.node();
  if (a.op == Op::score) {
    inner = e;
    return true;
  }
  if (!expr::depends_on(pattern, Op::score)) return expr::same(pattern, e);
  if (a.op != b.op || a.args.size() != b.args.size()) return false;
  for (std::size_t i = 0; i < a.args.size(); ++i) {
    if (!matches(a.args[i], b.args[i], inner)) return false;
  }
  return true;
}

// Keys of a sequence, those of a shared prefix too.
std::int64_t keys(const Problem& sizes) { return sizes.seqlen_prefix + sizes.seqlen_k; }

// Places at which a query may stand.
std::int64_t rows(const Problem& sizes, Alignment alignment) {
  switch (alignment) {
    case Alignment::top_left:
      return sizes.seqlen_q;
    case Alignment::bottom_right:
      break;
  }
  return keys(sizes);
}

Expr read_causal(const Token& token, const Problem&, Alignment alignment) {
  token.take_no_value();
  return causal(alignment);
}
Value print_causal(Candidate& candidate, Alignment alignment) {
  return candidate.is(causal(alignment)) ? Value("") : std::nullopt;
}

Expr read_window(const Token& token, const Problem&, Alignment alignment) {
  constexpr std::string_view kAccepted =
      "window<left>x<right> with a negative number for no bound, as in window128x0";
  const std::vector<std::string_view> bounds = split(token.value, 'x');
  if (bounds.size() != 2) token.refuse(kAccepted);
  return window(token.number<std::int32_t>(bounds[0], kAccepted),
                token.number<std::int32_t>(bounds[1], kAccepted), alignment);
}
Value print_window(Candidate& candidate, Alignment alignment) {
  for (const std::int32_t left : candidate.ints()) {
    for (const std::int32_t right : candidate.ints()) {
      if (left < -1 || right < -1 || (left < 0 && right < 0)) continue;
      if (candidate.is(window(left, right, alignment))) return fmt::format("{}x{}", left, right);
    }
  }
  return std::nullopt;
}

Expr read_prefix(const Token& token, const Problem&, Alignment alignment) {
  return prefix(token.number<std::int32_t>("prefix<N>, as in prefix64"), alignment);
}
Value print_prefix(Candidate& candidate, Alignment alignment) {
  for (const std::int32_t n : candidate.ints()) {
    if (n >= 0 && candidate.is(prefix(n, alignment))) return fmt::format("{}", n);
  }
  return std::nullopt;
}

std::vector<std::int64_t> default_ids_shape(const Problem& sizes, Alignment alignment) {
  return {sizes.batch, std::max(rows(sizes, alignment), keys(sizes))};
}
Expr read_documents(const Token& token, const Problem& sizes, Alignment alignment) {
  const std::vector<std::string_view> shapes = split(token.value, ',');
  if (shapes.size() > 2 || (shapes.size() == 2 && alignment == Alignment::top_left)) {
    token.refuse("documents, documents<shape>, documents<shape of q>,<of k>, documentstl<shape>");
  }
  const std::vector<std::int64_t> shape_q =
      token.value.empty() ? default_ids_shape(sizes, alignment) : token.shape(shapes[0]);
  if (token.value.empty() && sizes.batch == 0) {
    token.refuse("documents beside b<N>, or with a shape");
  }
  const Tensor ids_q = shape_only(DType::i32, shape_q);
  if (shapes.size() == 1) return documents(ids_q, alignment);
  return documents(ids_q, shape_only(DType::i32, token.shape(shapes[1])));
}
Value print_documents(Candidate& candidate, Alignment alignment) {
  const auto& ids = candidate.buffers();
  const auto are_ids = [](const auto& buffer) {
    const Tensor& t = buffer->tensor();
    return t.dtype == DType::i32 && (t.rank == 1 || t.rank == 2);
  };
  if (ids.empty() || !std::ranges::all_of(ids, are_ids)) return std::nullopt;
  const Tensor& first = ids[0]->tensor();
  const std::vector<std::int64_t> shape = shape_of(first);
  if (ids.size() == 1) {
    if (!candidate.is(rename_buffer(documents(first, alignment), "ids", ids[0]->name()))) {
      return std::nullopt;
    }
    return shape == default_ids_shape(candidate.problem(), alignment) ? "" : shape_text(shape);
  }
  if (ids.size() > 2 || alignment == Alignment::top_left) return std::nullopt;
  Expr of_both = documents(first, ids[1]->tensor());
  of_both = rename_buffer(of_both, "ids_q", ids[0]->name());
  of_both = rename_buffer(of_both, "ids_k", ids[1]->name());
  if (!candidate.is(of_both)) return std::nullopt;
  return shape_text(shape) + "," + shape_text(shape_of(ids[1]->tensor()));
}

Expr read_butterfly(const Token& token, const Problem& sizes, Alignment alignment) {
  constexpr std::string_view kAccepted =
      "butterfly<block> with a block of at least 1 and seqlens set, as in butterfly64";
  const auto block = token.number<std::int32_t>(kAccepted);
  if (block < 1 || sizes.seqlen_q == 0 || keys(sizes) == 0) token.refuse(kAccepted);
  return BlockMask::butterfly(rows(sizes, alignment), keys(sizes), block).mask(alignment);
}
Value print_butterfly(Candidate& candidate, Alignment alignment) {
  const Problem& sizes = candidate.problem();
  if (candidate.buffers().size() != 1 || sizes.seqlen_q == 0 || keys(sizes) == 0) {
    return std::nullopt;
  }
  const expr::Buffer& buffer = *candidate.buffers()[0];
  const Tensor& got = buffer.tensor();
  if (got.dtype != DType::u8 || got.rank != 2 || got.data == nullptr || !got.contiguous()) {
    return std::nullopt;
  }
  for (const std::int32_t block : candidate.ints()) {
    if (block < 1) continue;
    const auto blocks = [&](std::int64_t size) { return size / block + (size % block != 0); };
    if (got.shape[0] != blocks(rows(sizes, alignment)) || got.shape[1] != blocks(keys(sizes))) {
      continue;  // told before the pattern's bytes are made
    }
    const Expr pattern =
        BlockMask::butterfly(rows(sizes, alignment), keys(sizes), block).mask(alignment);
    if (!candidate.is(rename_buffer(pattern, "block_mask", buffer.name()))) continue;
    const auto* const bytes = static_cast<const std::uint8_t*>(got.data);
    const auto* const expected =
        static_cast<const std::uint8_t*>(expr::buffers(pattern)[0]->tensor().data);
    if (std::equal(bytes, bytes + got.size(), expected)) return fmt::format("{}", block);
  }
  return std::nullopt;
}

// 0 words where seqlen_q is 0: both are then taken from the tensor.
std::vector<std::int64_t> default_tree_shape(const Problem& sizes) {
  const std::int64_t words = sizes.seqlen_q / 32 + (sizes.seqlen_q % 32 != 0);
  return {sizes.batch, sizes.seqlen_q, words};
}
Expr read_tree(const Token& token, const Problem& sizes, Alignment) {
  if (token.value.empty() && sizes.batch == 0) token.refuse("tree beside b<N>, or with a shape");
  const std::vector<std::int64_t> shape =
      token.value.empty() ? default_tree_shape(sizes) : token.shape(token.value);
  if (shape.size() != 3) token.refuse("tree or tree<batch>x<q>x<words>, as in tree1x64x2");
  return tree_mask(shape_only(DType::i32, shape));
}
Value print_tree(Candidate& candidate, Alignment) {
  if (candidate.buffers().size() != 1) return std::nullopt;
  const expr::Buffer& buffer = *candidate.buffers()[0];
  const Tensor& words = buffer.tensor();
  if (words.dtype != DType::i32 || words.rank != 3) return std::nullopt;
  if (!candidate.is(rename_buffer(tree_mask(words), "tree", buffer.name()))) return std::nullopt;
  const std::vector<std::int64_t> shape = shape_of(words);
  return shape == default_tree_shape(candidate.problem()) ? "" : shape_text(shape);
}

Expr read_softcap(const Token& token, const Problem&, Alignment) {
  return softcap(token.number<float>("softcap<c> with c finite, as in softcap30"));
}
Value print_softcap(Candidate& candidate, Alignment) {
  for (const float cap : candidate.floats()) {
    if (cap > 0 && std::isfinite(cap) && candidate.is(softcap(cap))) return fmt::format("{}", cap);
  }
  return std::nullopt;
}

Expr read_alibi(const Token& token, const Problem& sizes, Alignment alignment) {
  token.take_no_value();
  if (sizes.heads_q == 0) token.refuse("alibi beside h<N> or hq<N>");
  return alibi(shape_only(DType::f32, {sizes.heads_q}), alignment);
}
Value print_alibi(Candidate& candidate, Alignment alignment) {
  const std::int64_t heads = candidate.problem().heads_q;
  for (const auto& buffer : candidate.buffers()) {
    const Tensor& slopes = buffer->tensor();
    if (heads == 0 || slopes.dtype != DType::f32 || shape_of(slopes) != std::vector{heads}) {
      continue;
    }
    if (candidate.is(rename_buffer(alibi(slopes, alignment), "slopes", buffer->name()))) return "";
  }
  return std::nullopt;
}

std::vector<std::int64_t> default_bias_shape(const Problem& sizes, Alignment alignment) {
  return {1, sizes.heads_q, rows(sizes, alignment), keys(sizes)};
}
Expr read_bias(const Token& token, const Problem& sizes, Alignment alignment) {
  const std::size_t letters =
      std::min(token.value.find_first_not_of("0123456789x"), token.value.size());
  const std::string_view shape = token.value.substr(0, letters);
  const std::string_view dtype = token.value.substr(letters);
  const DType type = dtype.empty() ? DType::f32 : parse_dtype(dtype);
  if (shape.empty() && sizes.heads_q == 0) {
    token.refuse("bias beside h<N> or hq<N>, or with a shape");
  }
  const std::vector<std::int64_t> of_bias =
      shape.empty() ? default_bias_shape(sizes, alignment) : token.shape(shape);
  if (of_bias.size() != 2 && of_bias.size() != 4) {
    token.refuse("bias, bias<q>x<k> or bias<batch>x<head>x<q>x<k>, then a dtype if it is not f32");
  }
  return bias(shape_only(type, of_bias), alignment);
}
Value print_bias(Candidate& candidate, Alignment alignment) {
  for (const auto& buffer : candidate.buffers()) {
    const Tensor& tensor = buffer->tensor();
    const bool floating =
        tensor.dtype == DType::f32 || tensor.dtype == DType::bf16 || tensor.dtype == DType::f16;
    if (!floating || (tensor.rank != 2 && tensor.rank != 4)) continue;
    if (!candidate.is(rename_buffer(bias(tensor, alignment), "bias", buffer->name()))) continue;
    const std::vector<std::int64_t> shape = shape_of(tensor);
    const bool is_default = shape == default_bias_shape(candidate.problem(), alignment);
    return fmt::format("{}{}", is_default ? "" : shape_text(shape),
                       tensor.dtype == DType::f32 ? "" : name(tensor.dtype));
  }
  return std::nullopt;
}

constexpr bool kMask = false, kScore = true;
constexpr Alignment kRight = Alignment::bottom_right, kLeft = Alignment::top_left;

constexpr std::array<Shorthand, 16> kShorthands{{
    {"causal", "causal", kMask, kRight, read_causal, print_causal},
    {"causaltl", "causaltl", kMask, kLeft, read_causal, print_causal},
    {"window", "window<left>x<right>", kMask, kRight, read_window, print_window},
    {"windowtl", "windowtl<left>x<right>", kMask, kLeft, read_window, print_window},
    {"prefix", "prefix<N>", kMask, kRight, read_prefix, print_prefix},
    {"prefixtl", "prefixtl<N>", kMask, kLeft, read_prefix, print_prefix},
    {"documents", "documents", kMask, kRight, read_documents, print_documents},
    {"documentstl", "documentstl", kMask, kLeft, read_documents, print_documents},
    {"butterfly", "butterfly<N>", kMask, kRight, read_butterfly, print_butterfly},
    {"butterflytl", "butterflytl<N>", kMask, kLeft, read_butterfly, print_butterfly},
    {"tree", "tree", kMask, kRight, read_tree, print_tree},
    {"softcap", "softcap<c>", kScore, kRight, read_softcap, print_softcap},
    {"alibi", "alibi", kScore, kRight, read_alibi, print_alibi},
    {"alibitl", "alibitl", kScore, kLeft, read_alibi, print_alibi},
    {"bias", "bias", kScore, kLeft, read_bias, print_bias},
    {"biasbr", "biasbr", kScore, kRight, read_bias, print_bias},
}};

}  // namespace

Candidate::Candidate(const Problem& problem, Expr e)
    : problem_(problem), e_(std::move(e)), ints_{-1, 0, 1}, buffers_(expr::buffers(e_)) {
  // -1, 0 and 1 may have been folded away.
  collect_constants(e_, ints_, floats_);
  if (ints_.size() > kMostInts) ints_.clear();
}

bool Candidate::is(const Expr& pattern) { return matches(pattern, e_, inner_); }

std::span<const Shorthand> shorthands() { return kShorthands; }

const Shorthand* find_shorthand(std::string_view name) {
  const auto* const row = std::ranges::find(kShorthands, name, &Shorthand::name);
  return row == kShorthands.end() ? nullptr : row;
}

}  // namespace attn::core
