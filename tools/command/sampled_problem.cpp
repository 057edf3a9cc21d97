#include "command/sampled_problem.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>
#include <random>
#include <span>

#include "core/cached_rows.hpp"
#include "core/problem/dropout_state.hpp"
#include "core/problem/key_list.hpp"

namespace attn::command {
namespace {

using expr::Expr;
using expr::Op;

std::int64_t last_dimension(const Tensor& tensor) {
  return tensor.shape[static_cast<std::size_t>(tensor.rank) - 1];
}

io::Array i32_array(std::int64_t size) { return io::Array(DType::i32, std::array{size}); }

std::span<std::int32_t> values(const io::Array& array) {
  return {static_cast<std::int32_t*>(array.tensor().data),
          static_cast<std::size_t>(array.tensor().size())};
}

}  // namespace

SampledProblem::SampledProblem(const Problem& whole, const Inputs& inputs, const RowSample& sample,
                               std::uint64_t key_order)
    : whole_(whole),
      whole_inputs_(inputs),
      sample_(sample),
      sequence_(core::sequence(whole, inputs, sample.batch)),
      problem_(whole),
      query_positions_(i32_array(static_cast<std::int64_t>(sample.rows.size()))),
      key_positions_(i32_array(sequence_.length_k)),
      constants_(i32_array(2)) {
  const std::int64_t group = whole.heads_q / whole.heads_k;
  problem_.batch = 1;
  problem_.seqlen_q = static_cast<std::int64_t>(sample.rows.size());
  problem_.seqlen_k = sequence_.length_k;
  problem_.heads_q = group;
  problem_.heads_k = 1;
  problem_.layout_q = problem_.layout_k = Layout::dense;
  problem_.seqlen_prefix = 0;  // its keys are among those that are gathered
  problem_.paged_prefix = false;
  // The whole may name a tensor for its state.
  problem_.dropout = core::with_state(whole.dropout, inputs.rng_state);

  std::copy(sample.rows.begin(), sample.rows.end(), values(query_positions_).begin());
  const std::span<std::int32_t> keys = values(key_positions_);
  std::iota(keys.begin(), keys.end(), 0);
  if (key_order != 0) std::shuffle(keys.begin(), keys.end(), std::mt19937_64(key_order));

  const auto head = static_cast<std::int32_t>(sample.head_k * group);
  const expr::Buffer query_position("sampled_query", query_positions_.tensor());
  const expr::Buffer key_position("sampled_key", key_positions_.tensor());
  // Read, not written as numbers: those would be folded in float32, where fp64 is the reference.
  values(constants_)[0] = static_cast<std::int32_t>(sample.batch);
  values(constants_)[1] = sequence_.length_q;
  const expr::Buffer constants("sampled_constants", constants_.tensor());
  for (Expr* e : {&problem_.mask, &problem_.score}) {
    if (e->empty()) continue;
    *e = substitute(*e, Op::query, query_position[expr::symbols().query]);
    *e = substitute(*e, Op::key, key_position[expr::symbols().key]);
    *e = substitute(*e, Op::head, expr::symbols().head + head);
    *e = substitute(*e, Op::batch, constants[Expr(0)]);
    *e = substitute(*e, Op::seqlen_q, constants[Expr(1)]);
  }

  inputs_.q = (q_ = queries(inputs.q)).tensor();
  if (inputs.scale_q.given()) inputs_.scale_q = (scale_q_ = query_scales()).tensor();
  inputs_.k = (k_ = gather_keys(sequence_.k, inputs.k)).tensor();
  inputs_.v = (v_ = gather_keys(sequence_.v, inputs.v)).tensor();
  if (inputs.scale_k.given()) inputs_.scale_k = (scale_k_ = gather_scales(inputs.scale_k)).tensor();
  if (inputs.scale_v.given()) inputs_.scale_v = (scale_v_ = gather_scales(inputs.scale_v)).tensor();
  inputs_.buffers = inputs.buffers;
  if (whole.key_list > 0) inputs_.key_list = (key_list_ = key_list()).tensor();
  if (whole.sink) {
    inputs_.sink = tensor(static_cast<const float*>(inputs.sink.data) + head, {group});
  }
}

reference::DropoutPlaces SampledProblem::dropout_places() const {
  return {.first_head = sample_.batch * whole_.heads_q + sample_.head_k * group(),
          .query = values(query_positions_),
          .key = values(key_positions_)};
}

template <class Copy>
void SampledProblem::for_each_query(const core::Rows& rows, const io::Array& array,
                                    const Copy& copy) const {
  std::byte* at = array.data();
  const std::size_t bytes =
      size_of(array.tensor().dtype) * static_cast<std::size_t>(last_dimension(array.tensor()));
  for (const std::int32_t row : sample_.rows) {
    for (std::int64_t h = 0; h < group(); ++h, at += bytes) {
      copy(rows.row(row, sample_.head_k * group() + h), at, bytes);
    }
  }
}

io::Array SampledProblem::queries(const Tensor& like_q) const {
  io::Array result(like_q.dtype,
                   std::array{std::int64_t{1}, static_cast<std::int64_t>(sample_.rows.size()),
                              group(), last_dimension(like_q)});
  for_each_query(
      core::rows_like_q(whole_, whole_inputs_, like_q, sample_.batch), result,
      [](const std::byte* row, std::byte* at, std::size_t bytes) { std::memcpy(at, row, bytes); });
  return result;
}

void SampledProblem::store_queries(const io::Array& from, const Tensor& like_q) const {
  for_each_query(
      core::rows_like_q(whole_, whole_inputs_, like_q, sample_.batch), from,
      [](std::byte* row, const std::byte* at, std::size_t bytes) { std::memcpy(row, at, bytes); });
}

io::Array SampledProblem::gather_keys(const core::Rows& rows, const Tensor& tensor) const {
  io::Array result(tensor.dtype, std::array{std::int64_t{1}, problem_.seqlen_k, std::int64_t{1},
                                            last_dimension(tensor)});
  const std::size_t bytes =
      size_of(tensor.dtype) * static_cast<std::size_t>(last_dimension(tensor));
  std::byte* at = result.data();
  for (const std::int32_t key : values(key_positions_)) {
    std::memcpy(at, rows.row(key, sample_.head_k), bytes);
    at += bytes;
  }
  return result;
}

io::Array SampledProblem::query_scales() const {
  const auto scales = core::Scales::of_q(whole_, whole_inputs_, sample_.batch);
  io::Array result(DType::f32, std::array{std::int64_t{1},
                                          static_cast<std::int64_t>(sample_.rows.size()), group()});
  auto* at = static_cast<float*>(result.tensor().data);
  for (const std::int32_t row : sample_.rows) {
    for (std::int64_t h = 0; h < group(); ++h) {
      *at++ = scales.at(row, sample_.head_k * group() + h);
    }
  }
  return result;
}

io::Array SampledProblem::gather_scales(const Tensor& scale) const {
  const core::Scales scales(whole_, whole_inputs_, scale, sample_.batch);
  io::Array result(DType::f32, std::array{std::int64_t{1}, problem_.seqlen_k, std::int64_t{1}});
  auto* at = static_cast<float*>(result.tensor().data);
  for (const std::int32_t key : values(key_positions_)) *at++ = scales.at(key, sample_.head_k);
  return result;
}

// Entries name keys in this problem's order.
io::Array SampledProblem::key_list() const {
  std::vector<std::int32_t> place(static_cast<std::size_t>(problem_.seqlen_k));
  std::int32_t next = 0;
  for (const std::int32_t key : values(key_positions_)) {
    place[static_cast<std::size_t>(key)] = next++;
  }
  io::Array result(DType::i32,
                   std::array{std::int64_t{1}, std::int64_t{1},
                              static_cast<std::int64_t>(sample_.rows.size()), whole_.key_list});
  auto to = values(result).begin();
  for (const std::int32_t row : sample_.rows) {
    const core::KeyList list =
        core::key_list(whole_, whole_inputs_, sequence_, row, sample_.head_k);
    for (std::int64_t entry = 0; entry < list.count; ++entry) {
      const std::int32_t key = list.key(entry);
      *to++ = key < 0 ? -1 : place[static_cast<std::size_t>(key)];
    }
  }
  return result;
}

io::Array SampledProblem::keys(const Tensor& like_k) const {
  return gather_keys(core::rows_like_k(whole_, whole_inputs_, like_k, sample_.batch), like_k);
}

io::Array SampledProblem::lse(const Tensor& lse) const {
  io::Array result(lse.dtype, std::array{std::int64_t{1}, group(),
                                         static_cast<std::int64_t>(sample_.rows.size())});
  const std::size_t bytes = size_of(lse.dtype);
  std::byte* at = result.data();
  for (std::int64_t h = 0; h < group(); ++h) {
    const core::LseRow from =
        core::lse_row(whole_, whole_inputs_, lse, sample_.batch, sample_.head_k * group() + h);
    for (const std::int32_t row : sample_.rows) {
      std::memcpy(at, from.base + row * from.stride, bytes);
      at += bytes;
    }
  }
  return result;
}

}  // namespace attn::command
