// The command as a program.
#include <filesystem>

#include "command/command.hpp"

int main(int argc, char** argv) {
  std::error_code failed;  // then the path is empty, which only `attn io --measure` on a GPU runs
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", failed);
  attn::command::words_that_start_it() = {program.native()};
  return attn::command::command_main({argv + (argc > 0 ? 1 : 0), argv + argc},
                                     attn::command::add_subcommands);
}
