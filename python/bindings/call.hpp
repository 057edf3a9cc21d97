// The arguments of a call from Python as those of the library.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "array.hpp"
#include "attn/context.hpp"
#include "attn/plan.hpp"
#include "attn/problem.hpp"
#include "attn/run.hpp"

namespace attn::python {

// What every operation on q, k, v takes beside them; attn/options.py makes it of the keywords.
struct Options {
  std::string problem{};      // descriptor (docs/descriptors.md) of masks, scores, sink, dropout
  nb::dict tensors{};         // members of Inputs by name: cu_seqlens_q, ..., sink
  nb::dict buffers{};         // named buffers of mask and score
  bool heads_first = false;   // tensors of rank 4 are [batch, heads, seqlen, head_dim]
  std::int64_t seqlen_q = 0;  // of the longest packed sequence; 0: found in cu_seqlens
  std::int64_t seqlen_k = 0;
  std::uint64_t seed = 0;  // of dropout
  std::uint64_t offset = 0;
  PlanOptions plan{};
};

// The problem of a descriptor; texts are read once. Thread-safe.
Problem parsed(const std::string& text);
// The tensor of that name, or null: then it is a buffer.
Tensor* member(Inputs& inputs, std::string_view name);
// Packed or paged Q, K and V, as the tensors of lengths and pages say.
void choose_layouts(Problem& problem, const Inputs& inputs);

class Call {
 public:
  Call(const Options& options, nb::handle q, nb::handle k, nb::handle v);

  // A tensor of rank 4 in the library's order, [batch, seqlen, heads, head_dim].
  Tensor ordered(const Array& array) const;
  // Shapes of results in the caller's order; empty where q or v has no usable rank, which the
  // library then refuses.
  std::vector<std::int64_t> o_shape() const;
  std::vector<std::int64_t> lse_shape() const;
  // A result: the array that was given, or a new one like q.
  Array result(std::string_view name, nb::handle given, ResultType type,
               const std::vector<std::int64_t>& shape) const;

  Plan plan(Phase phase) const;
  // With the stream of q's library and, on a GPU, workspace for `plan`.
  Context context(const Plan& plan);
  bool on_gpu() const { return q_.tensor.device.type != DeviceType::cpu; }

  const Array& q() const { return q_; }
  const Problem& problem() const { return problem_; }
  const Inputs& inputs() const { return inputs_; }
  const Array& buffer(std::string_view name) const;

 private:
  // An input: refused where torch would have to record a gradient.
  Array input(std::string_view name, nb::handle object);
  void take_tensors(const nb::dict& tensors);
  void take_buffers(const nb::dict& buffers);
  Tensor scalar(std::string_view name, nb::handle number);

  std::optional<bool> records_gradients_;  // asked once a call
  bool heads_first_;
  PlanOptions options_;
  Problem problem_;
  Inputs inputs_;
  Array q_, k_, v_;
  std::vector<Array> kept_;  // the tensors of inputs_ beside q, k, v
  std::vector<std::pair<std::string, Array>> buffers_;
  std::list<float> floats_;  // what scalars of mask and score point to
  std::list<std::int32_t> integers_;
  Array workspace_;
};

}  // namespace attn::python
