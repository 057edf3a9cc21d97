// What `attn` does.
#include "command/command.hpp"

namespace attn::command {

void add_subcommands(CLI::App& app, int& status, const std::string& command_line) {
  add_info(app, status, command_line);
  add_run(app, status, command_line);
  add_check(app, status, command_line);
  add_bench(app, status, command_line);
  add_io(app, status, command_line);
  add_launch(app, status);
  add_matmul(app, status, command_line);
  add_compile(app, status, command_line);
  add_dist(app, status);
  add_explain(app, status);
  add_generate(app, status);
}

}  // namespace attn::command
