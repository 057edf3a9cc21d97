// The arguments of a call from Python as those of the library.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "array.hpp"
#include "attn/context.hpp"
#include "attn/plan.hpp"
#include "attn/problem.hpp"
#include "attn/run.hpp"
#include "plans.hpp"

namespace attn::python {

// What every operation on q, k, v takes beside them; attn/options.py makes it of the keywords.
struct Options {
  std::string problem{};     // descriptor (docs/descriptors.md) of masks, scores, sink, dropout
  nb::dict tensors{};        // members of Inputs by name: cu_seqlens_q, ..., sink
  nb::dict buffers{};        // named buffers of mask and score
  bool heads_first = false;  // tensors of rank 4 are [batch, heads, seqlen, head_dim]
  Described described{};     // `problem`, read, with lengths and the state of dropout
  PlanOptions plan{};

  bool has_arrays() const { return tensors.size() + buffers.size() > 0; }
};

// The tensor of that name, or null: then it is a buffer.
Tensor* member(Inputs& inputs, std::string_view name);
// The dtypes of q, k, v and of those.
std::string accepted_dtypes(std::string_view name);

// The buffers of a mask that is an array, and of slopes of each sequence: MASK_ARRAY and
// HEAD_SLOPES of attn/options.py.
inline constexpr std::string_view kMaskArray = "_allowed", kHeadSlopes = "_head_slopes";

// Refuse what has not the sizes of the call. shown: the array, as a message shows it. problem: as
// described, with the length of a prefix in pages.
void check_mask(const Tensor& mask, const std::string& shown, const Inputs& inputs,
                const Problem& problem);
void check_alibi(const Tensor& slopes, const std::string& shown, const Inputs& inputs);

// Whether a call refuses tensors that PyTorch would record a gradient of, or would ask the class
// of, because nothing would.
enum class Recording : std::uint8_t { refused, done_by_caller };

// Refuses tensors of PyTorch whose derivative a call would lose: a tangent of forward mode, which
// no call carries on, and, in calls that record no gradient, one that would be recorded. These also
// refuse tensors whose class would be passed by.
class DerivativeCheck {
 public:
  explicit DerivativeCheck(Recording recording) : recording_(recording) {}
  void operator()(std::string_view name, const Array& array);

 private:
  Recording recording_;
  std::optional<bool> records_gradients_;  // each asked once a call
  std::optional<bool> is_forward_mode_;
};

// The threads of a call on a CPU: `asked` where that is not 0, as far as there are CPUs; else as
// many as attn has, and no more than PyTorch uses where q is its tensor.
std::shared_ptr<Executor> executor_of(const Array& q, int asked);

class Call {
 public:
  // `options` must live as long as the call.
  Call(const Options& options, nb::handle q, nb::handle k, nb::handle v,
       Recording recording = Recording::refused);

  // A tensor of rank 4 in the library's order, [batch, seqlen, heads, head_dim].
  Tensor ordered(const Array& array) const;
  // Shapes of results in the caller's order; empty where q or v has no usable rank, which the
  // library then refuses.
  bool has_type_q() const;
  std::vector<std::int64_t> o_shape() const;
  std::vector<std::int64_t> lse_shape() const;
  std::int64_t heads_q() const;  // of a q of usable rank
  // An array that the call reads. Refused where PyTorch would have to follow a derivative.
  Array input(std::string_view name, nb::handle object);
  // A result: the array that was given, or a new one like q.
  Array result(std::string_view name, nb::handle given, ResultType type,
               const std::vector<std::int64_t>& shape);

  // With the reasons that people read; of this call alone.
  Plan plan(Phase phase) const;
  // That of calls alike.
  std::shared_ptr<const Plan> known_plan(Phase phase) const;
  // With the stream of q's library and, on a GPU, workspace for `plan`.
  Context context(const Plan& plan);
  bool on_gpu() const { return q_.tensor.device.type != DeviceType::cpu; }

  const Array& q() const { return q_; }
  const Array& k() const { return k_; }
  const Array& v() const { return v_; }
  const Inputs& inputs() const { return inputs_; }
  const Array& buffer(std::string_view name) const;

 private:
  void check_trace(Recording recording) const;
  void check_layout() const;
  void take_tensors(const nb::dict& tensors);
  void take_buffers(const nb::dict& buffers);
  Tensor scalar(std::string_view name, nb::handle number);

  const Options& options_;
  DerivativeCheck check_derivative_;
  PlanOptions plan_options_;
  Context context_;  // without stream and workspace
  Inputs inputs_;
  Array q_, k_, v_;
  std::vector<Array> kept_;  // the tensors of inputs_ beside q, k, v
  std::vector<std::pair<std::string, Array>> buffers_;
  std::list<float> floats_;  // what scalars of mask and score point to
  std::list<std::int32_t> integers_;
  Array workspace_;
};

}  // namespace attn::python
