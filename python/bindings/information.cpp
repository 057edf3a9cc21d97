// What the library and this machine are.
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <string>
#include <vector>

#include "attn/context.hpp"
#include "attn/error.hpp"
#include "attn/machine.hpp"
#include "attn/mask.hpp"
#include "attn/plan.hpp"
#include "attn/version.hpp"
#include "operations.hpp"

namespace attn::python {
namespace {

namespace nb = nanobind;

// What kernels are compiled for, or why there are none.
nb::dict gpu() {
  nb::dict found;
  try {
    PlanOptions options;
    options.backend = Backend::cuda;
    options.device = {DeviceType::cuda, 0};
    const Plan plan = make_plan(parse_problem("b1_n128_h1_d64_bf16"), Phase::forward, options);
    found["available"] = true;
    found["arch"] = plan.launch.arch;
  } catch (const Error& error) {
    found["available"] = false;
    found["reason"] = std::string(error.what());
  }
  return found;
}

nb::dict information() {
  const Machine machine = describe_machine();
  nb::dict sets;
  for (const InstructionSetInfo& info : instruction_sets()) {
    sets[std::string(name(info.isa)).c_str()] =
        info.available ? std::string("available") : info.reason;
  }
  nb::dict result;
  result["version"] = ATTN_VERSION_STRING;
  result["cpu"] = machine.cpu;
  result["cpus"] = machine.cpus;
  result["memory_bytes"] = machine.memory_bytes;
  result["instruction_sets"] = sets;
  result["cuda"] = gpu();
  return result;
}

nb::list slopes(std::int64_t heads) {
  nb::list result;
  for (const float slope : alibi_slopes(heads)) result.append(slope);
  return result;
}

// A list for each row of the buffer.
nb::list rows_of_tree(const std::vector<std::int32_t>& parents, std::int64_t seqlen_q) {
  const std::vector<std::int32_t> words = tree_words(parents, seqlen_q);
  const std::size_t rows = seqlen_q == 0 ? parents.size() : static_cast<std::size_t>(seqlen_q);
  const std::size_t width = (rows + 31) / 32;
  nb::list result;
  for (std::size_t i = 0; i < rows; ++i) {
    nb::list row;
    for (std::size_t j = 0; j < width; ++j) row.append(words[i * width + j]);
    result.append(row);
  }
  return result;
}

}  // namespace

void bind_information(nb::module_& module) {
  using namespace nb::literals;  // NOLINT(google-build-using-namespace): only literals
  module.attr("__version__") = ATTN_VERSION_STRING;
  module.def("info", &information);
  module.def("alibi_slopes", &slopes);
  module.def("tree_words", &rows_of_tree);
  module.def("get_num_threads", &get_num_threads);
  module.def("set_num_threads", &set_num_threads, "threads"_a);
}

}  // namespace attn::python
