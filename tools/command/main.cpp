// attn: exact attention from the command line.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <fstream>
#include <new>
#include <sstream>

#include "attn/error.hpp"
#include "attn/version.hpp"
#include "command/command.hpp"
#include "command/interrupt.hpp"

namespace attn::command {
namespace {

int exit_code(ErrorCode code) {
  switch (code) {
    case ErrorCode::invalid_argument:
    case ErrorCode::io:
      return kBadInput;
    case ErrorCode::unsupported:
    case ErrorCode::unavailable:
    case ErrorCode::out_of_memory:
      return kNotAvailable;
    case ErrorCode::device:
    case ErrorCode::internal:
      break;
  }
  return kWrong;
}

// Replaces each argument "@file" by the words of the file; '#' begins a comment.
std::vector<std::string> expand(int argc, char** argv) {
  std::vector<std::string> arguments;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument.size() < 2 || argument.front() != '@') {
      arguments.push_back(argument);
      continue;
    }
    std::ifstream file(argument.substr(1));
    if (!file) {
      throw Error(ErrorCode::io, fmt::format("argument {}: the file cannot be read; a text file of "
                                             "arguments is expected",
                                             argument));
    }
    for (std::string line; std::getline(file, line);) {
      std::istringstream words(line.substr(0, line.find('#')));
      for (std::string word; words >> word;) arguments.push_back(word);
    }
  }
  return arguments;
}

// As it was typed, but for the shell's quotes.
std::string command_line(int argc, char** argv) {
  std::string text = "attn";
  for (int i = 1; i < argc; ++i) text += std::string(" ") + argv[i];
  return text;
}

int run(int argc, char** argv) {
  CLI::App app("Exact attention: computes it, checks it against its definition, times it.", "attn");
  app.set_version_flag("--version", "attn " ATTN_VERSION_STRING);
  app.require_subcommand(1);
  app.failure_message([](const CLI::App*, const CLI::Error& error) {
    return fmt::format("attn: {} (see attn --help)\n", error.what());
  });
  app.footer(
      "An argument @file stands for the words of that file, '#' begins a comment in it.\n"
      "Exit codes: 0 ok, 1 a check failed or a result is wrong, 2 bad usage or input, 3 not "
      "available here.");
  int status = kOk;
  add_info(app, status);
  add_run(app, status);
  add_check(app, status);
  add_bench(app, status, command_line(argc, argv));
  add_compile(app, status);
  try {
    std::vector<std::string> arguments = expand(argc, argv);
    const auto is_first = [&](const CLI::App* sub) { return sub->check_name(arguments.front()); };
    if (!arguments.empty() && !arguments.front().starts_with('-') &&
        app.get_subcommands(is_first).empty()) {
      throw Error(
          ErrorCode::invalid_argument,
          fmt::format(
              "the subcommand is \"{}\", but info, run, check, bench and compile are accepted",
              arguments.front()));
    }
    std::reverse(arguments.begin(), arguments.end());  // as CLI11 wants them
    app.parse(arguments);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? kOk : kBadInput;
  } catch (const Error& error) {
    fmt::print(stderr, "attn: {}\n", error.what());
    return exit_code(error.code());
  } catch (const std::bad_alloc&) {
    fmt::print(stderr, "attn: memory could not be allocated\n");
    return kNotAvailable;
  } catch (const std::exception& error) {
    // Text that cannot be printed is told by finish().
    if (std::ferror(stdout) == 0) fmt::print(stderr, "attn: {}\n", error.what());
    return kWrong;
  }
  return status;
}

// The exit code of a command whose text must have reached standard output: a full disk shows at
// the last flush, or before.
int finish(int status) {
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return status;
  fmt::print(stderr, "attn: standard output cannot be written\n");
  return kBadInput;
}

}  // namespace
}  // namespace attn::command

int main(int argc, char** argv) {
  attn::command::watch_interrupts();
  return attn::command::finish(attn::command::run(argc, argv));
}
