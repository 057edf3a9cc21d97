// `attn run` against the library itself: every listed case and random ones, their tensors in a
// safetensors file and the problem in its text form, forward and backward. What is written must
// have the bits of the call that the file describes.
#include <list>

#include "attn/run.hpp"
#include "command_test_util.hpp"
#include "io/safetensors.hpp"
#include "verify/cases.hpp"
#include "verify/compare.hpp"
#include "verify/data.hpp"

namespace attn::io {
namespace {

using verify::Case;
using verify::CaseData;

class RunFiles : public Command {
 protected:
  using Named = std::vector<std::pair<std::string, Tensor>>;

  // Row-major, as the command will read it: strides decide how a backend reads, not what.
  Tensor stored(const std::string& name, const Tensor& tensor, Named& file) {
    if (!tensor.given()) return {};
    const Tensor& copy = arrays_.emplace_back(convert(tensor, tensor.dtype)).tensor();
    file.emplace_back(name, copy);
    return copy;
  }
  Tensor poisoned(const Tensor& like) {
    if (!like.given()) return {};
    Array& array = arrays_.emplace_back(
        like.dtype, std::span(like.shape.data(), static_cast<std::size_t>(like.rank)));
    std::memset(array.data(), 0xff, array.bytes());
    return array.tensor();
  }

  void expect_same(const Case& c, std::uint64_t seed) {
    const std::string text = verify::to_string(c);
    SCOPED_TRACE(text + " seed " + std::to_string(seed));
    arrays_.clear();
    CaseData data(c, seed);
    const bool with_gradients = verify::has_backward(c.problem);
    Named file;
    Inputs inputs;
    inputs.q = stored("q", data.inputs.q, file);
    inputs.k = stored("k", data.inputs.k, file);
    inputs.v = stored("v", data.inputs.v, file);
    inputs.scale_k = stored("scale_k", data.inputs.scale_k, file);
    inputs.scale_v = stored("scale_v", data.inputs.scale_v, file);
    inputs.cu_seqlens_q = stored("cu_seqlens_q", data.inputs.cu_seqlens_q, file);
    inputs.cu_seqlens_k = stored("cu_seqlens_k", data.inputs.cu_seqlens_k, file);
    inputs.seqused_q = stored("seqused_q", data.inputs.seqused_q, file);
    inputs.seqused_k = stored("seqused_k", data.inputs.seqused_k, file);
    inputs.page_table = stored("page_table", data.inputs.page_table, file);
    inputs.key_list = stored("key_list", data.inputs.key_list, file);
    inputs.prefix_k = stored("prefix_k", data.inputs.prefix_k, file);
    inputs.prefix_v = stored("prefix_v", data.inputs.prefix_v, file);
    inputs.prefix_page_table = stored("prefix_page_table", data.inputs.prefix_page_table, file);
    inputs.sink = stored("sink", data.inputs.sink, file);
    inputs.rng_state = stored("rng_state", data.inputs.rng_state, file);
    const OutputGradients d_outputs(stored("d_o", data.d_o, file),
                                    stored("d_lse", data.d_lse, file));
    for (const auto& [name, tensor] : data.inputs.buffers) {
      inputs.buffers.emplace_back(name, stored(name, tensor, file));
    }
    Named expected;
    const auto result = [&](const std::string& name, const Tensor& like) {
      const Tensor tensor = poisoned(like);
      if (tensor.given()) expected.emplace_back(name, tensor);
      return tensor;
    };
    Outputs outputs{.o = result("o", data.outputs.o), .lse = result("lse", data.outputs.lse)};
    outputs.max_logit = result("max_logit", data.outputs.max_logit);
    const bool asks_logit = outputs.max_logit.given();
    forward(data.problem, inputs, outputs);
    outputs.max_logit = {};  // no input of the backward pass
    if (with_gradients) {
      // All of them, whether or not the case asks: results do not depend on which are asked for.
      Gradients gradients{.dq = result("dq", inputs.q),
                          .dk = result("dk", inputs.k),
                          .dv = result("dv", inputs.v),
                          .dsink = result("dsink", data.gradients.dsink),
                          .buffers = {}};
      for (const auto& [name, tensor] : data.gradients.buffers) {
        gradients.buffers.emplace_back(name, result("d" + name, tensor));
      }
      backward(data.problem, inputs, outputs, d_outputs, gradients);
    }

    write_safetensors(path("call.safetensors"), file);
    const Result run = attn(fmt::format(
        "run --input {} --problem '{}' --lse {} {} --seconds 0 --output {}",
        quoted("call.safetensors"), attn::to_string(c.problem), with_gradients ? "--backward" : "",
        asks_logit ? "--max-logit" : "", quoted("results.safetensors")));
    ASSERT_EQ(run.code, 0) << run.text();
    const SafetensorsFile results(path("results.safetensors"));
    EXPECT_EQ(results.entries().size(), expected.size()) << run.text();
    for (const auto& [name, tensor] : expected) {
      ASSERT_TRUE(results.contains(name)) << name;
      const Array got = results.read(name);
      ASSERT_EQ(attn::to_string(got.tensor()), attn::to_string(tensor)) << name;
      EXPECT_TRUE(verify::first_difference(got.tensor(), tensor).empty()) << name;
    }
  }

 private:
  std::list<Array> arrays_;
};

TEST_F(RunFiles, ListedCases) {
  std::size_t turn = 0;
  for (const verify::ListedCase& listed : verify::listed_cases()) {
    constexpr DType kTypes[] = {DType::f32, DType::bf16, DType::f16};
    expect_same(verify::with_dtype(verify::parse_case(listed.descriptor), kTypes[turn++ % 3]), 1);
  }
}

TEST_F(RunFiles, RandomCases) {
  for (std::uint64_t seed = 1; seed <= 60; ++seed) expect_same(verify::random_case(seed), seed);
}

}  // namespace
}  // namespace attn::io
