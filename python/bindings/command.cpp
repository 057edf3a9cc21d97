// The attn command within the module, so that a wheel has one copy of the library.
#include "command/command.hpp"

#include <nanobind/nanobind.h>

#include "operations.hpp"

namespace attn::python {
namespace {

namespace nb = nanobind;

// Of bytes: an argument may be a path in no encoding.
std::vector<std::string> words(const nb::list& list) {
  std::vector<std::string> result;
  for (const nb::handle word : list) {
    const auto bytes = nb::cast<nb::bytes>(word);
    result.emplace_back(bytes.c_str(), bytes.size());
  }
  return result;
}

int run_command(const nb::list& arguments, const nb::list& itself) {
  command::words_that_start_it() = words(itself);
  const std::vector<std::string> typed = words(arguments);
  const nb::gil_scoped_release released;
  return command::command_main(typed, command::add_subcommands);
}

}  // namespace

void bind_command(nb::module_& module) {
  using namespace nb::literals;  // NOLINT(google-build-using-namespace): only literals
  module.def("command", &run_command, "arguments"_a, "itself"_a);
}

}  // namespace attn::python
