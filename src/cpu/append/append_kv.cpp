// Tasks are some new rows each, of all heads of Q, K and V, so that cosines and sines of a row are
// there once. Rows that nothing is done with are copied, as many at once as lie together.
#include "cpu/append/append_kv.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <functional>

#include "core/cache_type.hpp"
#include "core/hadamard.hpp"
#include "core/tensor/element.hpp"
#include "cpu/append/cosines.hpp"
#include "cpu/plan_check.hpp"
#include "cpu/tile_ops.hpp"

namespace attn::cpu {
namespace {

// Bytes that a task reads and writes: some microseconds of work, so that threads end together and
// handing tasks out takes no time of note.
constexpr std::int64_t kTaskBytes = 128 * 1024;

using Floats = std::array<float, kMaxHeadDim>;

// Q, K or V.
struct Part {
  const core::AppendPart& part;
  core::AppendRows from, to;
  AppendSteps steps;
  Floats weight{};
  std::int64_t heads, row_bytes;  // of one head, as it is written
  bool copies;                    // nothing is done with the elements
  bool together;                  // the heads of a row lie one after the other, on both sides

  Part(const core::AppendCall& call, const core::AppendPart& p)
      : part(p),
        from(p.from, call.packed),
        to(p.to, !p.cached && call.packed),
        heads(p.heads()),
        row_bytes(core::row_bytes(p.type, p.dim())),
        copies(core::cache_type(p.from.dtype) == p.type && !p.norm && !p.rope && !p.hadamard),
        together(heads == 1 || (from.head_stride == row_bytes && to.head_stride == row_bytes)) {
    steps.source = p.from.dtype;
    steps.dim = static_cast<int>(p.dim());
    steps.norm = p.norm;
    steps.norm_eps = static_cast<float>(call.norm_eps);
    for (std::int64_t i = 0; p.weight.given() && i < p.dim(); ++i) {
      weight[static_cast<std::size_t>(i)] = static_cast<float>(
          core::load_element(static_cast<const std::byte*>(p.weight.data) +
                                 i * static_cast<std::int64_t>(size_of(p.weight.dtype)),
                             p.weight.dtype));
    }
    if (p.rope) steps.rope_dim = static_cast<int>(call.rope_dim);
    steps.interleaved = call.interleaved;
    if (p.hadamard) steps.hadamard = static_cast<int>(core::hadamard_size(p.dim()));
    steps.target = p.type;
    steps.chooses_scale = p.writes_scale;
  }

  // The row of the result, or core::kNoPlace.
  std::int64_t target(const core::AppendRow& row) const {
    return part.cached ? row.place : row.row;
  }
  // Whether the bytes of the rows after row i of these lie behind its own, on both sides.
  bool follow(const core::AppendRow& a, const core::AppendRow& b) const {
    const std::int64_t bytes = heads * row_bytes;
    return b.row == a.row + 1 && target(b) == target(a) + 1 && target(a) != core::kNoPlace &&
           from.at(b.row, 0) == from.at(a.row, 0) + bytes &&
           to.at(target(b), 0) == to.at(target(a), 0) + bytes;
  }
};

void copy_rows(const Part& p, const std::vector<core::AppendRow>& rows, std::size_t first,
               std::size_t last) {
  for (std::size_t i = first; i < last;) {
    std::size_t end = i + 1;
    if (p.together) {
      while (end < last && p.follow(rows[end - 1], rows[end])) ++end;
    }
    const std::int64_t target = p.target(rows[i]);
    if (target != core::kNoPlace) {
      // In place there is nothing to do.
      const std::int64_t pieces = p.together ? 1 : p.heads;
      const auto bytes = static_cast<std::size_t>(p.heads / pieces * p.row_bytes) * (end - i);
      for (std::int64_t head = 0; head < pieces; ++head) {
        std::byte* const to = p.to.at(target, head);
        const std::byte* const from = p.from.at(rows[i].row, head);
        if (to != from && bytes > 0) std::memcpy(to, from, bytes);
      }
    }
    i = end;
  }
}

// Cosines and sines of a row by its columns, the sines with their signs.
struct Rotation {
  Floats cos, sin;

  void set(const core::AppendCall& call, std::int64_t position) {
    const AppendInputs& in = call.inputs;
    const std::int64_t pairs = call.rope_dim / 2;
    Floats of_pair_cos, of_pair_sin;
    const float* cosines = of_pair_cos.data();
    const float* sines = of_pair_sin.data();
    if (in.inv_freq.given()) {
      set_cosines(static_cast<double>(position), static_cast<const float*>(in.inv_freq.data), pairs,
                  of_pair_cos.data(), of_pair_sin.data());
    } else {
      cosines = static_cast<const float*>(in.cos.data) + position * in.cos.strides[0];
      sines = static_cast<const float*>(in.sin.data) + position * in.sin.strides[0];
    }
    for (std::int64_t i = 0; i < pairs; ++i) {
      const float c = cosines[i], s = sines[i];
      const auto first = static_cast<std::size_t>(call.interleaved ? 2 * i : i);
      const auto second = static_cast<std::size_t>(call.interleaved ? 2 * i + 1 : pairs + i);
      cos[first] = cos[second] = c;
      sin[first] = -s;
      sin[second] = s;
    }
  }
};

void treat_row(const Part& p, const AppendVerb& verb, const Rotation& rotation,
               const core::AppendRow& row) {
  const std::int64_t target = p.target(row);
  if (target == core::kNoPlace) return;
  for (std::int64_t head = 0; head < p.heads; ++head) {
    const float given = p.part.writes_scale ? 1 : core::given_scale(p.part, head);
    const float scale = verb.append_row(p.steps, rotation.cos.data(), rotation.sin.data(),
                                        p.from.at(row.row, head), given, p.to.at(target, head));
    if (p.part.writes_scale) {
      std::memcpy(core::AppendRows(p.part.scale, false).at(target, head), &scale, sizeof(scale));
    }
  }
}

}  // namespace

void append_kv(const core::AppendCall& call, const Context& context) {
  const AppendVerb& verb = tile_ops(best_instruction_set(context.isa), DType::f32).append;
  const std::vector<core::AppendRow> rows = core::append_rows(call);
  std::vector<Part> parts;
  parts.reserve(call.count);
  std::int64_t bytes = 1;  // of a new row
  for (const core::AppendPart& part : call.parts()) {
    Part& p = parts.emplace_back(call, part);
    if (p.part.weight.given()) p.steps.weight = p.weight.data();
    bytes +=
        p.heads * (p.row_bytes + p.steps.dim * static_cast<std::int64_t>(size_of(p.steps.source)));
  }
  const bool rotates =
      std::any_of(parts.begin(), parts.end(), [](const Part& p) { return p.steps.rope_dim > 0; });
  const auto count = static_cast<std::int64_t>(rows.size());
  const std::int64_t rows_of_task = std::max<std::int64_t>(1, kTaskBytes / bytes);
  const auto task = [&](std::int64_t index, int) {
    const auto first = static_cast<std::size_t>(index * rows_of_task);
    const auto last = static_cast<std::size_t>(std::min(count, (index + 1) * rows_of_task));
    Rotation rotation;
    for (const Part& p : parts) {
      if (p.copies) copy_rows(p, rows, first, last);
    }
    for (std::size_t i = first; i < last; ++i) {
      if (rotates) rotation.set(call, rows[i].rope_position);
      for (const Part& p : parts) {
        if (!p.copies) treat_row(p, verb, rotation, rows[i]);
      }
    }
  };
  const std::int64_t tasks = (count + rows_of_task - 1) / rows_of_task;
  executor_of(context)->parallel_for(tasks, std::cref(task));
}

}  // namespace attn::cpu
