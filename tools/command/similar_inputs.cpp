#include "command/similar_inputs.hpp"

#include <random>
#include <utility>

#include "verify/storage.hpp"

namespace attn::command {
namespace {

io::Array similar(const Tensor& tensor, std::mt19937_64& random) {
  if (!tensor.given()) return {};
  io::Array array = io::convert(tensor, tensor.dtype);
  for (std::int64_t i = 0; i < tensor.size(); ++i) {
    const double part = 1 - static_cast<double>(random() >> 40) * 0x1p-27;
    verify::store_element(array.tensor(), i, part * verify::load_element(array.tensor(), i));
  }
  return array;
}

}  // namespace

SimilarInputs::SimilarInputs(Inputs inputs, const OutputGradients& d_outputs, std::uint64_t draw)
    : inputs_(std::move(inputs)), d_outputs_(d_outputs) {
  std::mt19937_64 random(draw);
  const auto replace = [&](io::Array& array, Tensor& tensor) {
    array = similar(tensor, random);
    tensor = array.tensor();
  };
  replace(q_, inputs_.q);
  replace(k_, inputs_.k);
  replace(v_, inputs_.v);
  replace(prefix_k_, inputs_.prefix_k);
  replace(prefix_v_, inputs_.prefix_v);
  replace(d_o_, d_outputs_.o);
}

}  // namespace attn::command
