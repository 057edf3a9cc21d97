#include "cuda/row_places.hpp"

#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <string>

#include "core/made_for.hpp"

namespace attn::cuda {
namespace {

// Numbers before and after the places, so that the rows of every tile have some: tiles have fewer.
constexpr std::size_t kMargin = 1024;

// starts: empty where the layout is dense, so that all sequences have the same rows.
DeviceBuffer upload(int device, const std::vector<core::Runs>& runs,
                    const std::vector<std::int32_t>& starts, std::int64_t seqlen) {
  const std::size_t batch = runs.size();
  std::vector<std::int32_t> numbers = starts;
  numbers.resize(batch + 1 + kMargin);
  const auto add = [&](std::size_t b, std::int64_t rows) {
    for (std::int32_t i = 0; i < rows; ++i) numbers.push_back(core::place_of(runs[b], i));
  };
  if (starts.empty()) {
    add(0, seqlen);
  } else {
    for (std::size_t b = 0; b < batch; ++b) add(b, starts[b + 1] - starts[b]);
  }
  // A launch may have tiles for as many rows of each sequence as the longest has.
  numbers.resize(numbers.size() + static_cast<std::size_t>(seqlen) + kMargin);
  DeviceBuffer memory(device, numbers.size() * sizeof(std::int32_t));
  memory.upload(numbers.data(), memory.bytes());
  return memory;
}

}  // namespace

std::shared_ptr<const RowPlaces> RowPlaces::of(const Plan& plan,
                                               std::vector<KernelRequest>& requests) {
  const core::MadeFor& made_for = *core::made_for(plan);
  const core::Places* const places = made_for.places.get();
  if (places == nullptr) return nullptr;
  const std::string text = fmt::format("#define ATTN_PLACE_MARGIN {}\n", kMargin);
  for (KernelRequest& request : requests) request.source.text.insert(0, text);
  const auto made = std::make_shared<RowPlaces>();
  const Problem& p = plan.problem;
  made->query_ = upload(plan.device.index, places->query, made_for.starts_q, p.seqlen_q);
  made->key_ = upload(plan.device.index, places->key, made_for.starts_k, p.seqlen_k);
  return made;
}

void RowPlaces::give(device::ProblemParams& parameters) const {
  parameters.cu_seqlens_q = static_cast<const int*>(query_.data());
  parameters.cu_seqlens_k = static_cast<const int*>(key_.data());
}

}  // namespace attn::cuda
