// attn: exact attention from the command line, as a process of its own or within Python.
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <csignal>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <new>
#include <sstream>
#include <string_view>

#include "attn/error.hpp"
#include "attn/version.hpp"
#include "command/command.hpp"
#include "command/interrupt.hpp"
#include "command/message.hpp"
#include "io/file.hpp"

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

// Far above what a call of any use needs; devices and pipes may never end.
constexpr std::size_t kMaxArgumentFile = 16 << 20;

// The words of a text file; '#' begins a comment.
void add_words(const std::string& argument, std::vector<std::string>& words) {
  const std::string path = argument.substr(1);
  const auto refuse = [&](const std::string& why) {
    throw Error(ErrorCode::io, fmt::format("argument {}: {}; a text file of arguments is expected",
                                           io::printable(argument), why));
  };
  std::error_code unknown;  // what cannot be asked cannot be read either
  if (std::filesystem::is_directory(path, unknown)) refuse("it is a directory");
  std::ifstream file(path);
  if (!file) refuse("the file cannot be read");
  std::string text;
  for (char c = 0; file.get(c);) {
    if (text.size() == kMaxArgumentFile) refuse("it has more than 16 MiB");
    text += c;
  }
  if (file.bad()) refuse("the file cannot be read");
  std::istringstream lines(text);
  int number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    const auto is_control = [](unsigned char c) { return std::iscntrl(c) && !std::isspace(c); };
    const auto control = std::find_if(line.begin(), line.end(), is_control);
    if (control != line.end()) {
      refuse(fmt::format("line {} has the byte 0x{:02x}", number,
                         static_cast<unsigned char>(*control)));
    }
    std::istringstream stream(line.substr(0, line.find('#')));
    for (std::string word; stream >> word;) words.push_back(word);
  }
}

// Replaces each argument "@file" by the words of the file.
std::vector<std::string> expand(const std::vector<std::string>& typed) {
  std::vector<std::string> arguments;
  for (const std::string& argument : typed) {
    if (argument.size() < 2 || argument.front() != '@') {
      arguments.push_back(argument);
    } else {
      add_words(argument, arguments);
    }
  }
  return arguments;
}

// One line that a terminal shows as it is, whatever bytes an argument or a file holds.
std::string message_line(std::string_view text) {
  constexpr std::size_t kMaxCharacters = 4000;
  return fmt::format("attn: {}\n", io::printable(text, kMaxCharacters));
}

// What CLI11 says of these arguments, which it repeats whole, with long ones shortened.
std::string parse_message(std::string text, const std::vector<std::string>& arguments) {
  constexpr std::size_t kMaxCharacters = 1000;
  std::vector<std::string_view> parts;  // "--phase=x" is an option and a value
  for (const std::string_view argument : arguments) {
    parts.push_back(argument);
    const std::size_t equals = argument.find('=');
    if (equals != std::string_view::npos) parts.push_back(argument.substr(equals + 1));
  }
  // The longest first: once the text is short, all others are looked for in no time.
  std::sort(parts.begin(), parts.end(),
            [](std::string_view a, std::string_view b) { return a.size() > b.size(); });
  for (const std::string_view part : parts) {
    const std::string short_form = io::printable(part);
    if (short_form.size() >= part.size()) break;
    for (std::size_t at = 0; (at = text.find(part, at)) != std::string::npos;) {
      text.replace(at, part.size(), short_form);
      at += short_form.size();
    }
  }
  return io::printable(text, kMaxCharacters);
}

// The command line as it was typed, but for the shell's quotes.
std::string command_line(const std::vector<std::string>& arguments) {
  std::string text = "attn";
  for (const std::string& argument : arguments) text += " " + argument;
  return text;
}

// "info, run and check"
std::string visible_subcommands(const CLI::App& app) {
  std::string text;
  const auto all =
      app.get_subcommands([](const CLI::App* sub) { return !sub->get_group().empty(); });
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (i > 0) text += i + 1 < all.size() ? ", " : " and ";
    text += all[i]->get_name();
  }
  return text;
}

int run(const std::vector<std::string>& typed, AddSubcommands& add) {
  CLI::App app("Exact attention: computes it, checks it against its definition, times it.", "attn");
  app.set_version_flag("--version", "attn " ATTN_VERSION_STRING);
  app.require_subcommand(1);
  std::vector<std::string> arguments;
  app.failure_message([&](const CLI::App*, const CLI::Error& error) {
    return message_line(
        fmt::format("{} (see attn --help)", parse_message(error.what(), arguments)));
  });
  app.footer(
      "An argument @file stands for the words of that file, '#' begins a comment in it.\n"
      "Exit codes: 0 ok, 1 a check failed or a result is wrong, 2 bad usage or input, 3 not "
      "available here.");
  int status = kOk;
  const std::string line = command_line(typed);
  add(app, status, line);
  for (CLI::App* sub : app.get_subcommands([](const CLI::App*) { return true; })) {
    refuse_empty_values(*sub);
  }
  try {
    arguments = expand(typed);
    const auto is_first = [&](const CLI::App* sub) { return sub->check_name(arguments.front()); };
    if (!arguments.empty() && !arguments.front().starts_with('-') &&
        app.get_subcommands(is_first).empty()) {
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("the subcommand is \"{}\", but {} are accepted",
                              io::printable(arguments.front()), visible_subcommands(app)));
    }
    std::vector<std::string> reversed(arguments.rbegin(), arguments.rend());  // as CLI11 wants them
    app.parse(reversed);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? kOk : kBadInput;
  } catch (const Error& error) {
    tell(message_line(error.what()));
    return exit_code(error.code());
  } catch (const std::bad_alloc&) {
    tell("attn: memory could not be allocated\n");
    return kNotAvailable;
  } catch (const std::exception& error) {
    // Text that cannot be printed is told by finish().
    if (std::ferror(stdout) == 0) tell(message_line(error.what()));
    return kWrong;
  }
  return status;
}

// A file that the command opens must not become its standard output or standard error because the
// shell closed them, or text would go into it. Nothing can be written to what is opened instead.
void fill_standard_descriptors() {
  for (int descriptor = 0; descriptor <= STDERR_FILENO; ++descriptor) {
    if (::fcntl(descriptor, F_GETFD) >= 0) continue;
    if (::open("/dev/null", descriptor == STDIN_FILENO ? O_WRONLY : O_RDONLY) != descriptor) {
      std::_Exit(kBadInput);
    }
  }
}

// The exit code of a command whose text must have reached standard output: a full disk shows at
// the last flush, or before.
int finish(int status) {
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return status;
  tell("attn: standard output cannot be written\n");
  return kBadInput;
}

}  // namespace

int command_main(const std::vector<std::string>& arguments, AddSubcommands& add) {
  fill_standard_descriptors();
  std::signal(SIGXFSZ, SIG_IGN);  // a file past the limit of the shell is told as a full disk is
  watch_interrupts();
  return finish(run(arguments, add));
}

}  // namespace attn::command
