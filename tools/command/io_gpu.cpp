#include "command/io_gpu.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string_view>

#include "attn/error.hpp"
#include "command/command.hpp"
#include "command/cuda_timing.hpp"
#include "command/interrupt.hpp"
#include "core/platform/platform.hpp"
#include "io/file.hpp"
#include "verify/case.hpp"

namespace attn::command {
namespace {

namespace fs = std::filesystem;

// Removed with what is in it.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = (fs::temp_directory_path() / "attn_ncu_XXXXXX").native();
    if (mkdtemp(name.data()) == nullptr) io::fail(name, io::reason(errno));
    path_ = name;
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  fs::path file(const char* name) const { return path_ / name; }

 private:
  fs::path path_;
  OnInterrupt remove_{[this] {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }};
};

std::string text_of(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// The first program of this name in the folders of PATH.
fs::path on_the_path(const std::string& name) {
  const char* folders = std::getenv("PATH");
  std::istringstream list(folders == nullptr ? "" : folders);
  for (std::string folder; std::getline(list, folder, ':');) {
    const fs::path path = fs::path(folder) / name;
    std::error_code unreadable;  // a folder that may not be looked into has none
    if (fs::is_regular_file(path, unreadable) && access(path.c_str(), X_OK) == 0) return path;
  }
  return {};
}

// The environment with "LC_ALL=C": ncu groups digits as the locale does.
std::vector<std::string> environment_of_c() {
  std::vector<std::string> all{"LC_ALL=C"};
  for (char** entry = environ; *entry != nullptr; ++entry) {
    if (!std::string_view(*entry).starts_with("LC_ALL=")) all.emplace_back(*entry);
  }
  return all;
}

// The words as exec takes them; they have to outlive it.
std::vector<char*> pointers_to(std::vector<std::string>& words) {
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  return pointers;
}

// A group of processes of its own, which ends with this process, and signals as at its start:
// those that watch_interrupts() blocks here would be blocked there as well.
class ChildAttributes {
 public:
  ChildAttributes() {
    posix_spawnattr_init(&attributes_);
    sigset_t none, as_usual;
    sigemptyset(&none);
    sigemptyset(&as_usual);
    sigaddset(&as_usual, SIGXFSZ);  // main() ignores it
    posix_spawnattr_setsigmask(&attributes_, &none);
    posix_spawnattr_setsigdefault(&attributes_, &as_usual);
    posix_spawnattr_setpgroup(&attributes_, 0);
    posix_spawnattr_setflags(
        &attributes_, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP);
  }
  ~ChildAttributes() { posix_spawnattr_destroy(&attributes_); }
  ChildAttributes(const ChildAttributes&) = delete;
  ChildAttributes& operator=(const ChildAttributes&) = delete;
  const posix_spawnattr_t* get() const { return &attributes_; }

 private:
  posix_spawnattr_t attributes_;
};

// Runs a program whose standard output and error go to a file; its exit code, 128 and more where a
// signal ended it.
int run_program(const fs::path& program, const std::vector<std::string>& words,
                const fs::path& output) {
  std::vector<std::string> command{program.native()};
  command.insert(command.end(), words.begin(), words.end());
  std::vector<std::string> environment = environment_of_c();
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, output.c_str(),
                                   O_WRONLY | O_CREAT | O_TRUNC, 0600);
  posix_spawn_file_actions_adddup2(&actions, STDOUT_FILENO, STDERR_FILENO);
  std::atomic<pid_t> running = 0;
  const OnInterrupt end_it([&running] {
    if (const pid_t group = running; group > 0) kill(-group, SIGTERM);
  });
  pid_t child = 0;
  const ChildAttributes attributes;
  const int error = posix_spawn(&child, program.c_str(), &actions, attributes.get(),
                                pointers_to(command).data(), pointers_to(environment).data());
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) {
    throw Error(ErrorCode::unavailable,
                fmt::format("{} cannot be run: {}", program.native(), io::reason(error)));
  }
  running = child;
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

// Calls cuProfilerStart or cuProfilerStop, which no library code needs. They act on the current
// context.
void profiler(const char* symbol) {
  using Call = cuda::CUresult (*)();
  const auto call =
      reinterpret_cast<Call>(core::find_symbol(core::open_library("libcuda.so.1"), symbol));
  if (call == nullptr) {
    throw Error(ErrorCode::unavailable, fmt::format("the NVIDIA driver has no {}", symbol));
  }
  cuda::check(call(), symbol);
}

struct LaunchOptions {
  std::string descriptor, algorithm, device, kernel, phase = "forward";
};

int launch(const LaunchOptions& options) {
  const Device device = parse_device(options.device);
  if (device.type != DeviceType::cuda) {
    throw Error(ErrorCode::invalid_argument, "--device is cpu; accepted are cuda and cuda:N");
  }
  verify::CaseData data(verify::at_full_length(verify::parse_case(options.descriptor)), 1);
  const Phase phase = options.phase == "forward" ? Phase::forward : Phase::backward;
  const Plan plan = make_plan(
      complete(data.problem, data.inputs), phase,
      plan_options(
          {.algorithm = options.algorithm, .device = options.device, .kernel = options.kernel}));
  const GpuCalls calls(plan, data, {});
  calls.compute_once();  // compiles and loads what the next one runs
  const cuda::ContextGuard guard(device.index);
  profiler("cuProfilerStart");
  calls.compute_once();
  profiler("cuProfilerStop");
  return kOk;
}

}  // namespace

Ncu::Ncu() : program_(on_the_path("ncu")) {
  if (program_.empty()) {
    throw Error(ErrorCode::unavailable,
                "--measure with --device cuda reads the GPU's counters by ncu (Nsight Compute), "
                "which is in no folder of PATH; a CUDA toolkit has it in its bin");
  }
  const TemporaryFolder folder;
  const fs::path listed = folder.file("metrics");
  run_program(program_, {"--query-metrics"}, listed);
  metrics_ = traffic::ncu_metrics(text_of(listed));
}

traffic::GpuCounts Ncu::count(const GpuPass& pass) const {
  const TemporaryFolder folder;
  const fs::path log = folder.file("log"), output = folder.file("output");
  std::vector<std::string> command = words_that_start_it();
  command.insert(command.end(),
                 {"launch", pass.descriptor, "--phase", std::string(name(pass.phase)),
                  "--algorithm", std::string(name(pass.options.algorithm)), "--device",
                  fmt::format("cuda:{}", pass.options.device.index)});
  if (!pass.options.kernel.empty()) {
    command.insert(command.end(), {"--kernel", pass.options.kernel});
  }
  const int code =
      run_program(program_, traffic::ncu_words(metrics_, log.native(), command), output);
  const std::string said = text_of(log);
  const traffic::GpuCounts counts =
      code == 0 ? traffic::parse_ncu(said) : traffic::GpuCounts();  // else the log may be cut off
  if (counts.launches == 0) {
    constexpr std::size_t kMost = 400;
    std::string last = said + text_of(output);
    std::ranges::replace(last, '\n', ' ');
    last.erase(0, last.size() - std::min(last.size(), kMost));
    last.erase(last.find_last_not_of(' ') + 1);
    throw Error(ErrorCode::unavailable,
                fmt::format("{} counted nothing of {}: it ended with {} and said: {}",
                            program_.native(), pass.descriptor, code, last));
  }
  return counts;
}

std::string why_wrong(const GpuPass& pass, verify::CaseData& data) {
  const Plan plan = make_plan(complete(data.problem, data.inputs), pass.phase, pass.options);
  const GpuCalls calls(plan, data, {});
  const Verification verification = calls.verify();
  const std::string damage = data.damage();
  if (!damage.empty()) return damage + " was written";
  return verification.passed() ? "" : to_string(verification.worst());
}

void add_launch(CLI::App& app, int& status) {
  auto options = std::make_shared<LaunchOptions>();
  CLI::App* sub =
      app.add_subcommand("launch", "One pass on a GPU, between cuProfilerStart and cuProfilerStop");
  sub->group("");  // not shown: it is what `attn io --measure` has ncu run
  sub->add_option("descriptor", options->descriptor)->required();
  sub->add_option("--phase", options->phase)->check(CLI::IsMember({"forward", "backward"}));
  add_algorithm_option(*sub, options->algorithm);
  add_device_option(*sub, options->device);
  add_kernel_option(*sub, options->kernel);
  sub->callback([options, &status] { status = launch(*options); });
}

}  // namespace attn::command
