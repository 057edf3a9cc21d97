// The subcommands of `attn`, and what they share.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "attn/context.hpp"
#include "attn/plan.hpp"

namespace attn::command {

// What the process returns.
enum ExitCode : int {
  kOk = 0,
  kWrong = 1,         // a check failed or a result is wrong
  kBadInput = 2,      // usage, a malformed problem or file
  kNotAvailable = 3,  // backend, instruction set, kernel or memory
};

// Adds a program's subcommands, as add_subcommands() does.
using AddSubcommands = void(CLI::App& app, int& status, const std::string& command_line);
// What a process with these subcommands does for these arguments: returns its exit code. Once in a
// process, before it makes another thread.
int command_main(const std::vector<std::string>& arguments, AddSubcommands& add);
// The words that start the command anew: its program, or Python and the package that it lies in.
// Set before command_main().
inline std::vector<std::string>& words_that_start_it() {
  static std::vector<std::string> words;
  return words;
}

// Each adds one subcommand; its callback writes the exit code to `status` and throws attn::Error.
// `command_line` is what --json says was called.
void add_info(CLI::App& app, int& status, const std::string& command_line);
void add_compile(CLI::App& app, int& status, const std::string& command_line);
void add_run(CLI::App& app, int& status, const std::string& command_line);
void add_check(CLI::App& app, int& status, const std::string& command_line);
void add_bench(CLI::App& app, int& status, const std::string& command_line);
void add_io(CLI::App& app, int& status, const std::string& command_line);
void add_matmul(CLI::App& app, int& status, const std::string& command_line);

// All of them, as all_subcommands.cpp has them, or those that `make demo` runs
// (demo_subcommands.cpp). Each program has one of the two files, so no library may call it.
void add_subcommands(CLI::App& app, int& status, const std::string& command_line);

void add_launch(CLI::App& app, int& status);  // hidden: what `attn io --measure` runs under ncu
void add_dist(CLI::App& app, int& status);
void add_explain(CLI::App& app, int& status);
void add_generate(CLI::App& app, int& status);

// Options that several subcommands have. Empty text means "not given".
struct RunOptions {
  std::string algorithm{}, backend{}, isa{}, device{}, kernel{};
  int threads = 0;  // 0: one for each CPU
  bool deterministic = false, batch_invariant = false;
};
void add_algorithm_option(CLI::App& app, std::string& algorithm);
std::string algorithm_type();  // what the help shows for the value of --algorithm
void add_backend_option(CLI::App& app, std::string& backend);
CLI::Option* add_isa_option(CLI::App& app, std::string& isa);
void add_threads_option(CLI::App& app, int& threads);
void add_device_option(CLI::App& app, std::string& device);
void add_json_option(CLI::App& app, std::string& json);
void add_kernel_option(CLI::App& app, std::string& kernel);
void add_deterministic_flag(CLI::App& app, bool& deterministic);
void add_batch_invariant_flag(CLI::App& app, bool& batch_invariant);

// Validators whose refusal says the value and what is accepted.
CLI::Validator whole_number(std::uint64_t min, std::uint64_t max);
CLI::Validator seconds();  // finite, 0 or more
// Every option of a subcommand that takes a value refuses an empty one.
void refuse_empty_values(CLI::App& app);

// A file and the option that names it; an empty path names none, "-" standard output.
struct NamedFile {
  std::string_view option;
  std::string path;
};
// Throws Error(invalid_argument) where a file that is to be written is another of `written`, or one
// of `read`, which would be lost.
void check_files_differ(const std::vector<NamedFile>& written,
                        const std::vector<std::string>& read = {});

// "cpu" (also where the text is empty), "cuda" or "cuda:1". Throws Error(invalid_argument);
// Error(unavailable) for a GPU that is not there.
Device parse_device(const std::string& text);

// Throws Error(invalid_argument) for options that the others leave without effect: a kernel of the
// GPU on the CPU, an instruction set on a GPU or of the reference, an algorithm of the reference.
void check_run_options(const RunOptions& options);
// The options of a plan that these say; check_run_options has accepted them.
PlanOptions plan_options(const RunOptions& options);
// Warnings of the library go to stderr.
Context make_context(const RunOptions& options);

// "1.5 ms", "20 GiB": three significant digits.
std::string format_seconds(double seconds);
std::string format_bytes(double bytes);

}  // namespace attn::command
