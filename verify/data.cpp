#include "verify/data.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <tuple>

#include "attn/error.hpp"
#include "core/cache_type.hpp"
#include "core/ceil_div.hpp"
#include "core/problem/rows.hpp"
#include "reference/matrix.hpp"

namespace attn::verify {
namespace {

using core::ceil_div;
using core::Integers;

std::vector<std::int64_t> shape_of(const Tensor& t) {
  return {t.shape.begin(), t.shape.begin() + t.rank};
}

}  // namespace

CaseData::CaseData(const Case& c, std::uint64_t seed)
    : problem(c.problem), hints_(c.hints), random_(seed) {
  Placement place{.strided = hints_.strided, .headmajor = hints_.headmajor, .far = hints_.far};
  const auto with_broadcast = [&](bool broadcast) {
    Placement p = place;
    p.broadcast = broadcast;
    return p;
  };
  const Placement loose{.loose = hints_.strided || hints_.loose};
  make_lengths();

  const auto shape_q = shape_like(true, problem.head_dim);
  const CacheType type_k = core::type_of_k(problem), type_v = core::type_of_v(problem);
  const auto shape_k = shape_like(false, row_size(type_k, problem.head_dim));
  const auto shape_v = shape_like(false, row_size(type_v, problem.head_dim_v));
  const auto shape_o = shape_like(true, problem.head_dim_v);
  inputs.q = input("q", storage_dtype(core::type_of_q(problem)), shape_q,
                   with_broadcast(hints_.broadcast_q));
  inputs.k = input("k", storage_dtype(type_k), shape_k, with_broadcast(hints_.broadcast_k));
  if (hints_.v_in_k) {
    inputs.v = inputs.k;
    std::ranges::copy(shape_v, inputs.v.shape.begin());
  } else {
    inputs.v = input("v", storage_dtype(type_v), shape_v, with_broadcast(hints_.broadcast_v));
  }
  make_scales();
  Placement place_do = with_broadcast(hints_.broadcast_do);
  place_do.headmajor = place_do.headmajor || hints_.dotransposed;
  d_o = input("d_o", problem.dtype, shape_o, place_do);
  if (problem.key_list > 0) make_key_list();
  fill_rows(inputs.q, true, random_rows(hints_.q_factor, hints_.negative ? 1 : 0));
  fill_rows(inputs.k, false, random_rows(hints_.k_factor, hints_.negative ? -1 : 0));
  if (!hints_.v_in_k) fill_rows(inputs.v, false, random_rows());
  make_prefix();
  fill_prefix(true, random_rows(hints_.k_factor, hints_.negative ? -1 : 0));
  if (!hints_.v_in_k || !problem.paged_prefix) fill_prefix(false, random_rows());
  fill_rows(d_o, true, random_rows());
  if (problem.sink) {
    inputs.sink = input("sink", DType::f32, {problem.heads_q});
    for (std::int64_t h = 0; h < problem.heads_q; ++h) store_element(inputs.sink, h, normal());
    gradients.dsink = output("dsink", DType::f32, {problem.heads_q}, loose);
  }
  if (problem.dropout.rng_state) make_rng_state();
  make_buffers();
  if (hints_.identity) fill_identity();
  if (hints_.select) fill_select();

  outputs.o = output("o", core::type_of_o(problem), shape_o, place);
  const DType lse_dtype = problem.dtype == DType::f64 ? DType::f64 : DType::f32;
  const auto shape_lse = problem.layout_q == Layout::packed
                             ? std::vector{problem.heads_q, shape_q[0]}
                             : std::vector{problem.batch, problem.heads_q, problem.seqlen_q};
  outputs.lse = output("lse", lse_dtype, shape_lse, loose);
  if (hints_.dlse) {
    d_lse = input("d_lse", lse_dtype, shape_lse, loose);
    fill_like_lse(d_lse);
  }
  if (!hints_.nodq) gradients.dq = output("dq", problem.dtype, shape_q, place);
  if (has_backward(problem)) {
    if (!hints_.nodk) gradients.dk = output("dk", problem.dtype, shape_k, place);
    if (!hints_.nodv) gradients.dv = output("dv", problem.dtype, shape_v, place);
  }
  if (hints_.maxlogit) outputs.max_logit = output("max_logit", lse_dtype, {problem.heads_q}, loose);
  for (Named& named : inputs_) named.checksum = named.storage.checksum();
}

void CaseData::poison() {
  for (Named& named : outputs_) named.storage.poison();
}

std::string CaseData::damage() const {
  for (const Named& named : outputs_) {
    if (named.storage.overwritten()) return fmt::format("memory around output {}", named.name);
  }
  for (const Named& named : inputs_) {
    if (named.storage.checksum() != named.checksum) return fmt::format("input {}", named.name);
  }
  return {};
}

std::vector<const Storage*> CaseData::storages(Phase phase, bool read) const {
  std::vector<const Storage*> found;
  for (const Named& named : read ? inputs_ : outputs_) {
    const bool forward_only = named.name == "o" || named.name == "lse" || named.name == "max_logit";
    if (phase == Phase::forward &&
        (read ? named.name == "d_o" || named.name == "d_lse" : !forward_only))
      continue;
    found.push_back(&named.storage);
  }
  return found;
}

Outputs CaseData::f64_outputs() {
  return {.o = f64_like(outputs.o),
          .lse = f64_like(outputs.lse),
          .max_logit = f64_like(outputs.max_logit)};
}

Gradients CaseData::f64_gradients() {
  Gradients out{.dq = f64_like(gradients.dq),
                .dk = f64_like(gradients.dk),
                .dv = f64_like(gradients.dv),
                .dsink = f64_like(gradients.dsink),
                .buffers = {}};
  for (const auto& [name, tensor] : gradients.buffers) {
    out.buffers.emplace_back(name, f64_like(tensor));
  }
  return out;
}

Tensor CaseData::input(std::string name, DType dtype, const std::vector<std::int64_t>& shape,
                       const Placement& placement) {
  inputs_.push_back({std::move(name), Storage(dtype, shape, placement, random_)});
  return inputs_.back().storage.tensor();
}

Tensor CaseData::output(std::string name, DType dtype, const std::vector<std::int64_t>& shape,
                        const Placement& placement) {
  outputs_.push_back({std::move(name), Storage(dtype, shape, placement, random_)});
  outputs_.back().storage.poison();
  return outputs_.back().storage.tensor();
}

Tensor CaseData::f64_like(const Tensor& tensor) {
  if (!tensor.given()) return {};
  extra_.push_back({"", Storage(DType::f64, shape_of(tensor), {}, random_)});
  return extra_.back().storage.tensor();
}

double CaseData::uniform() { return static_cast<double>(random_() >> 11) * 0x1p-53; }

// Box and Muller, one of the two numbers.
double CaseData::normal() {
  const double radius = std::sqrt(-2 * std::log(1 - uniform()));
  return radius * std::cos(6.283185307179586 * uniform());
}

std::int64_t CaseData::below(std::int64_t limit) {
  return static_cast<std::int64_t>(random_() % static_cast<std::uint64_t>(limit));
}

Tensor CaseData::integers(std::string name, const std::vector<std::int64_t>& shape,
                          const Placement& placement) {
  return input(std::move(name), hints_.i64 ? DType::i64 : DType::i32, shape, placement);
}

void CaseData::set_integer(const Tensor& t, std::int64_t offset, std::int64_t value) {
  if (t.dtype == DType::i64) {
    static_cast<std::int64_t*>(t.data)[offset] = value;
  } else {
    static_cast<std::int32_t*>(t.data)[offset] = static_cast<std::int32_t>(value);
  }
}

std::int64_t CaseData::far_integer(bool low) {
  using Narrow = std::numeric_limits<std::int32_t>;
  using Wide = std::numeric_limits<std::int64_t>;
  if (!hints_.i64) return low ? Narrow::min() : Narrow::max();
  if (below(2) == 0) return low ? Wide::min() : Wide::max();
  constexpr std::int64_t kHigh = std::int64_t{1} << 32;
  return (low ? -kHigh : kHigh) + below(4);
}

void CaseData::make_lengths() {
  for (const auto& [hint, given, layout] : {std::tuple{"cuq", &hints_.cu_q, problem.layout_q},
                                            {"cuk", &hints_.cu_k, problem.layout_k}}) {
    if (given->empty() || layout == Layout::packed) continue;
    throw Error(ErrorCode::invalid_argument,
                fmt::format("hint '{}{}' is of a case that is not packed; accepted beside it is "
                            "packed",
                            hint, fmt::join(*given, ",")));
  }
  if (problem.layout_q == Layout::packed) {
    inputs.cu_seqlens_q = make_cu_seqlens("cu_seqlens_q", hints_.cu_q, problem.seqlen_q);
  }
  if (problem.layout_k == Layout::packed) {
    inputs.cu_seqlens_k = make_cu_seqlens("cu_seqlens_k", hints_.cu_k, problem.seqlen_k);
  }
  if (hints_.padded || !hints_.used_q.empty()) {
    inputs.seqused_q =
        make_seqused("seqused_q", hints_.used_q, inputs.cu_seqlens_q, problem.seqlen_q);
  }
  if (hints_.padded || !hints_.used_k.empty() || problem.layout_k == Layout::paged) {
    inputs.seqused_k =
        make_seqused("seqused_k", hints_.used_k, inputs.cu_seqlens_k, problem.seqlen_k);
  }
  if (problem.layout_k == Layout::paged) make_page_table();
}

// Random lengths up to seqlen, one of which is seqlen.
Tensor CaseData::make_cu_seqlens(const std::string& name, const std::vector<std::int32_t>& given,
                                 std::int64_t seqlen) {
  const Tensor cu = integers(name, {problem.batch + 1});
  const Integers starts(cu);
  if (!given.empty() && static_cast<std::int64_t>(given.size()) != problem.batch + 1) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("hint for {} has {} numbers; {} are accepted for a batch of {}", name,
                            given.size(), problem.batch + 1, problem.batch));
  }
  const std::int64_t longest = below(problem.batch);
  set_integer(cu, 0, 0);
  for (std::int64_t b = 0; b < problem.batch; ++b) {
    const std::int64_t length = b == longest ? seqlen : below(seqlen + 1);
    set_integer(cu, b + 1,
                given.empty() ? starts[b] + length : given[static_cast<std::size_t>(b + 1)]);
    if (starts[b + 1] < starts[b]) {
      throw Error(
          ErrorCode::invalid_argument,
          fmt::format("hint for {} has {} after {}; accepted are numbers from 0 that do not "
                      "decrease",
                      name, starts[b + 1], starts[b]));
    }
    if (starts[b + 1] - starts[b] > seqlen) {
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("hint for {} has a sequence of {} rows; accepted are up to {}, the "
                              "length of the descriptor",
                              name, starts[b + 1] - starts[b], seqlen));
    }
  }
  if (!given.empty() && given[0] != 0) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("hint for {} begins with {}; accepted is 0", name, given[0]));
  }
  return cu;
}

Tensor CaseData::make_seqused(const std::string& name, const std::vector<std::int32_t>& given,
                              const Tensor& cu_seqlens, std::int64_t seqlen) {
  const Tensor used = integers(name, {problem.batch});
  const Integers starts(cu_seqlens), lengths(used);
  if (!given.empty() && static_cast<std::int64_t>(given.size()) != problem.batch) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("hint for {} has {} numbers; {} are accepted", name, given.size(),
                            problem.batch));
  }
  for (std::int64_t b = 0; b < problem.batch; ++b) {
    const std::int64_t capacity = cu_seqlens.given() ? starts[b + 1] - starts[b] : seqlen;
    set_integer(used, b, given.empty() ? below(capacity + 1) : given[static_cast<std::size_t>(b)]);
    if (lengths[b] < 0 || lengths[b] > capacity) {
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("hint for {} has {}; accepted are 0 to {}, the rows of the sequence",
                              name, lengths[b], capacity));
    }
  }
  return used;
}

// Pages in use in random order, so that the pool has unused pages between them.
void CaseData::make_page_table() {
  const std::int64_t width = ceil_div(problem.seqlen_k, problem.page_size);
  inputs.page_table = integers("page_table", {problem.batch, width}, {.strided = hints_.strided});
  const Integers lengths(inputs.seqused_k);
  std::int64_t in_use = 0;
  for (std::int64_t b = 0; b < problem.batch; ++b) {
    in_use += ceil_div(lengths[b], problem.page_size);
  }
  const std::int64_t shared =
      problem.paged_prefix ? ceil_div(problem.seqlen_prefix, problem.page_size) : 0;
  in_use += shared;
  std::vector<std::int32_t> pages(static_cast<std::size_t>(in_use + 1 + below(4)));
  std::iota(pages.begin(), pages.end(), 0);
  std::shuffle(pages.begin(), pages.end(), random_);
  pages_ = static_cast<std::int64_t>(pages.size());
  for (std::int64_t b = 0; b < problem.batch; ++b) {
    const std::int64_t used = ceil_div(lengths[b], problem.page_size);
    for (std::int64_t i = 0; i < width; ++i) {
      const std::int64_t entry = inputs.page_table.offset({b, i});
      const std::int64_t kind = below(3);
      set_integer(inputs.page_table, entry, kind == 0 ? -1 : far_integer(kind == 2));
      if (i >= used) continue;
      set_integer(inputs.page_table, entry, pages.back());
      pages.pop_back();
    }
  }
  if (!problem.paged_prefix) return;
  inputs.prefix_page_table = integers("prefix_page_table", {shared});
  for (std::int64_t i = 0; i < shared; ++i) {
    set_integer(inputs.prefix_page_table, i, pages.back());
    pages.pop_back();
  }
}

// The tensor holds the numbers of the descriptor, and the problem others, which nothing may read.
void CaseData::make_rng_state() {
  inputs.rng_state = input("rng_state", DType::i64, {2});
  auto* const words = static_cast<std::int64_t*>(inputs.rng_state.data);
  words[0] = static_cast<std::int64_t>(problem.dropout.seed);
  words[1] = static_cast<std::int64_t>(problem.dropout.offset);
  problem.dropout.seed = ~problem.dropout.seed;
  problem.dropout.offset = ~problem.dropout.offset;
}

std::vector<std::int64_t> CaseData::shape_like(bool like_q, std::int64_t head_dim) const {
  const std::int64_t heads = like_q ? problem.heads_q : problem.heads_k;
  const Layout layout = like_q ? problem.layout_q : problem.layout_k;
  const Tensor& cu = like_q ? inputs.cu_seqlens_q : inputs.cu_seqlens_k;
  switch (layout) {
    case Layout::packed:
      return {Integers(cu)[problem.batch], heads, head_dim};
    case Layout::paged:
      return {pages_, problem.page_size, heads, head_dim};
    case Layout::dense:
      break;
  }
  return {problem.batch, like_q ? problem.seqlen_q : problem.seqlen_k, heads, head_dim};
}

// Elements of the rows in use <- normal random numbers.
void CaseData::fill_like_lse(const Tensor& tensor) {
  for (std::int64_t b = 0; b < problem.batch; ++b) {
    const core::Sequence sequence = core::sequence(problem, inputs, b);
    for (std::int64_t h = 0; h < problem.heads_q; ++h) {
      const core::LseRow row = core::lse_row(problem, inputs, tensor, b, h);
      for (std::int64_t i = 0; i < sequence.length_q; ++i) {
        core::store_element(row.base + i * row.stride, tensor.dtype, normal());
      }
    }
  }
}

void CaseData::fill_rows(const Tensor& tensor, bool like_q, const Value& value) {
  const Layout layout = like_q ? problem.layout_q : problem.layout_k;
  const Integers cu(like_q ? inputs.cu_seqlens_q : inputs.cu_seqlens_k);
  const Integers used(like_q ? inputs.seqused_q : inputs.seqused_k), pages(inputs.page_table);
  const std::int64_t seqlen = like_q ? problem.seqlen_q : problem.seqlen_k;
  const std::int64_t heads = like_q ? problem.heads_q : problem.heads_k;
  const auto place = [&](std::int64_t b, std::int64_t i, std::int64_t h) {
    if (layout == Layout::packed) return std::vector{cu[b] + i, h};
    if (layout == Layout::dense) return std::vector{b, i, h};
    const std::int64_t entry = inputs.page_table.offset({b, i / problem.page_size});
    return std::vector<std::int64_t>{pages[entry], i % problem.page_size, h};
  };
  std::vector<double> values(static_cast<std::size_t>(columns(tensor)));  // of a row
  for (std::int64_t b = 0; b < problem.batch; ++b) {
    const std::int64_t capacity = cu ? cu[b + 1] - cu[b] : seqlen;
    const std::int64_t length = used ? used[b] : capacity;
    for (std::int64_t i = 0; i < length; ++i) {
      for (std::int64_t h = 0; h < heads; ++h) {
        for (std::size_t c = 0; c < values.size(); ++c) {
          values[c] = value(b, i, h, static_cast<std::int64_t>(c));
        }
        store_row(tensor, place(b, i, h), values);
      }
    }
  }
}

CaseData::Value CaseData::random_rows(double factor, int sign) {
  return [this, factor, sign](auto...) {
    const double x = factor * normal();
    return sign == 0 ? x : sign * std::abs(x);
  };
}

void CaseData::fill_identity() {
  fill_rows(inputs.q, true, [](auto...) { return 0; });
  const std::int64_t columns = problem.head_dim_v;
  const std::int64_t group = problem.heads_q / problem.heads_k;
  fill_rows(inputs.v, false, [&](auto, std::int64_t j, std::int64_t h, std::int64_t c) {
    return problem.seqlen_prefix + j == h * columns + c ? 1 : 0;
  });
  fill_prefix(false, [&](auto, std::int64_t j, std::int64_t h, std::int64_t c) {
    return j == h * columns + c ? 1 : 0;
  });
  fill_rows(d_o, true, [&](auto, std::int64_t i, std::int64_t h, std::int64_t c) {
    return i == h / group * columns + c ? 1 : 0;
  });
}

// With head_dim of 64 and more two codes agree in so few places that the weight of the second best
// key, exp(-c^2 scale (difference of products)), is 0 in float.
void CaseData::fill_select() {
  constexpr double kCode = 8;
  std::uint64_t salt = random_();
  const auto code = [salt](std::int64_t b, std::int64_t j, std::int64_t h, std::int64_t c) {
    // A bit of a hash of the place (the finalizer of MurmurHash3).
    std::uint64_t x = salt ^ static_cast<std::uint64_t>(((b * 64 + h) * 65536 + j) * 1024 + c);
    x = (x ^ (x >> 33)) * 0xff51afd7ed558ccdu;
    x = (x ^ (x >> 33)) * 0xc4ceb9fe1a85ec53u;
    return (x >> 33) % 2 == 0 ? kCode : -kCode;
  };
  const auto small = [this](auto...) { return static_cast<double>(below(7) - 3); };
  const std::int64_t prefix = problem.seqlen_prefix;
  fill_rows(inputs.k, false, [&](std::int64_t b, std::int64_t j, std::int64_t h, std::int64_t c) {
    return code(b, prefix + j, h, c);
  });
  fill_prefix(true, code);
  fill_rows(inputs.v, false, small);
  fill_prefix(false, small);
  fill_rows(d_o, true, small);
  const std::int64_t group = problem.heads_q / problem.heads_k;
  std::int64_t target = 0;
  fill_rows(inputs.q, true, [&](std::int64_t b, std::int64_t i, std::int64_t h, std::int64_t c) {
    if (c == 0) target = visible_key(b, i, h);
    return code(target < prefix ? kPrefixBatch : b, target, h / group, c);
  });
}

// One of the keys that a query sees; 0 when it sees none.
std::int64_t CaseData::visible_key(std::int64_t b, std::int64_t i, std::int64_t h) {
  const core::Sequence sequence = core::sequence(problem, inputs, b);
  std::vector<std::int64_t> visible;
  for (std::int64_t j = 0; j < sequence.length_k; ++j) {
    const expr::Point at{.score = 0,
                         .query = static_cast<std::int32_t>(i),
                         .key = static_cast<std::int32_t>(j),
                         .batch = static_cast<std::int32_t>(b),
                         .head = static_cast<std::int32_t>(h),
                         .seqlen_q = sequence.length_q,
                         .seqlen_k = sequence.length_k};
    if (problem.mask.empty() || expr::evaluate<float>(problem.mask, at, inputs.buffers) != 0) {
      visible.push_back(j);
    }
  }
  return visible.empty()
             ? 0
             : visible[static_cast<std::size_t>(below(static_cast<std::int64_t>(visible.size())))];
}

// Tensors for the buffers that the description names without data, and gradients for those of the
// score.
void CaseData::make_buffers() {
  const auto add = [&](const expr::Expr& e, bool with_gradient) {
    if (e.empty()) return;
    for (const auto& buffer : expr::buffers(e)) {
      const Tensor& described = buffer->tensor();
      const auto has_name = [&](const auto& bound) { return bound.first == buffer->name(); };
      const bool bound = std::any_of(inputs.buffers.begin(), inputs.buffers.end(), has_name);
      if (described.data == nullptr && !bound) {
        const Tensor made = input(buffer->name(), described.dtype, shape_of(described));
        fill_buffer(made);
        inputs.buffers.emplace_back(buffer->name(), made);
      }
      if (with_gradient && described.given() && is_floating(described.dtype)) {
        gradients.buffers.emplace_back(buffer->name(),
                                       output("d" + buffer->name(), DType::f32, shape_of(described),
                                              {.loose = hints_.strided || hints_.loose}));
      }
    }
  };
  add(problem.mask, false);
  add(problem.score, true);
}

// i32 of rank 3: random bits, as words of a tree may be. Other i32: ids that grow along the last
// axis, as documents want them. u8: 0 or 1. Floating of rank 1: slopes as ALiBi has them, times 0.5
// to 1.5. Other floating: normal random numbers. Scalars: 0 to 8.
void CaseData::fill_buffer(const Tensor& tensor) {
  if (!tensor.given()) return store_element(tensor, 0, static_cast<double>(below(9)));
  const std::int64_t last = tensor.shape[static_cast<std::size_t>(tensor.rank) - 1];
  double id = 0;
  for (std::int64_t i = 0; i < tensor.size(); ++i) {
    if (tensor.dtype == DType::u8) {
      store_element(tensor, i, static_cast<double>(below(2)));
    } else if (!is_floating(tensor.dtype) && tensor.rank == 3) {
      store_element(tensor, i, static_cast<std::int32_t>(random_()));
    } else if (!is_floating(tensor.dtype)) {
      id = i % last == 0 ? 0 : id + (below(last) < 4 ? 1 : 0);
      store_element(tensor, i, id);
    } else if (tensor.rank == 1) {
      const double slope = std::exp2(-8.0 * static_cast<double>(i + 1) / static_cast<double>(last));
      store_element(tensor, i, slope * (0.5 + uniform()));
    } else {
      store_element(tensor, i, normal());
    }
  }
}

}  // namespace attn::verify
