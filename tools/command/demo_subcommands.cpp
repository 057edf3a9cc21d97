// What `attn_demo` does: what `make demo` runs, so that nothing else has to be built first.
#include "command/command.hpp"

namespace attn::command {

void add_subcommands(CLI::App& app, int& status, const std::string& command_line) {
  add_run(app, status, command_line);
  add_bench(app, status, command_line);
}

}  // namespace attn::command
