// attn info: what this machine is, what can run on it, and what it reaches.
#include <fmt/format.h>

#include <memory>

#include "attn/machine.hpp"
#include "attn/version.hpp"
#include "command/command.hpp"
#include "cuda/driver/device.hpp"
#include "cuda/driver/nvrtc.hpp"
#include "cuda/jit/disk_cache.hpp"

namespace attn::command {
namespace {

struct Options {
  bool measure = false;
  RunOptions run;
};

std::string size_or_unknown(std::int64_t bytes) {
  return bytes == 0 ? "unknown" : format_bytes(static_cast<double>(bytes));
}

void print_line(std::string_view title, std::string_view text) {
  fmt::print("{:<18}{}\n", title, text);
}

void print_instruction_sets() {
  std::string_view title = "instruction sets";
  const std::vector<InstructionSetInfo> sets = instruction_sets();
  InstructionSet best{};
  for (const InstructionSetInfo& info : sets) {
    if (info.available) best = info.isa;
  }
  for (const InstructionSetInfo& info : sets) {
    print_line(title, fmt::format("{:<12} {}", name(info.isa),
                                  !info.available    ? "not available: " + info.reason
                                  : info.isa == best ? "available, used when none is asked for"
                                                     : "available"));
    title = "";
  }
}

void print_backends() {
  print_line("backends",
             fmt::format("{:<12} available: kernels for the instruction sets above", "cpu"));
  print_line(
      "", fmt::format("{:<12} available: the definition in fp64, one thread, slow", "reference"));
  const std::optional<std::string> missing = cuda::why_unavailable();
  print_line("", missing ? fmt::format("{:<12} not available: {}", "cuda", *missing)
                         : fmt::format("{:<12} available: kernels compiled at run time", "cuda"));
  const auto print_algorithms = [](Phase phase) {
    std::string names;
    for (const Algorithm algorithm : algorithms(phase)) {
      names += fmt::format("{}{}", names.empty() ? "" : ", ", name(algorithm));
    }
    print_line(fmt::format("{} by", name(phase)), names);
  };
  print_algorithms(Phase::forward);
  print_algorithms(Phase::backward);
}

void print_gpus() {
  for (int device = 0; device < cuda::device_count(); ++device) {
    const cuda::DeviceInfo& info = cuda::device_info(device);
    print_line(
        fmt::format("cuda:{}", device),
        fmt::format("{}, compute capability {}.{}, {} SMs, {} of memory, L2 {}, {} of shared "
                    "memory a block",
                    info.name, info.arch / 10, info.arch % 10, info.sm_count,
                    format_bytes(static_cast<double>(info.memory_bytes)),
                    format_bytes(static_cast<double>(info.l2_bytes)),
                    format_bytes(static_cast<double>(info.shared_bytes_per_block))));
  }
  if (const cuda::Api* api = cuda::try_api()) {
    print_line("NVIDIA driver", "CUDA " + cuda::version_text(api->driver_version));
  }
  if (const std::optional<std::string> missing = cuda::why_no_nvrtc()) {
    print_line("NVRTC", "not available: " + *missing);
    return;
  }
  print_line("NVRTC", fmt::format("{} at {}", cuda::version_text(cuda::nvrtc().version),
                                  cuda::nvrtc().path));
  print_line("kernel cache", cuda::default_cache_folder().value_or("off"));
}

void print_peaks(const Context& context) {
  print_line("measured peaks", fmt::format("{:<12} {:.1f} GFLOP/s", name(DType::f32),
                                           measure_peak_gflops(DType::f32, context)));
  print_line("", fmt::format("{:<12} {:.1f} GFLOP/s", name(DType::bf16),
                             measure_peak_gflops(DType::bf16, context)));
  print_line("", fmt::format("{:<12} {:.1f} GB/s", "memory read", measure_read_gbps(context)));
}

void info(const Options& options) {
  const Context context = make_context(options.run);
  const Machine machine = describe_machine();
  print_line("version", ATTN_VERSION_STRING);
  print_line("cpu", machine.cpu);
  print_line("cpus", fmt::format("{}", machine.cpus));
  print_line("caches",
             fmt::format("L1d {}, L2 {}, L3 {}", size_or_unknown(machine.l1d_bytes),
                         size_or_unknown(machine.l2_bytes), size_or_unknown(machine.l3_bytes)));
  print_line("memory", size_or_unknown(machine.memory_bytes));
  print_line("threads", fmt::format("{}", context.executor->concurrency()));
  print_instruction_sets();
  print_backends();
  print_gpus();
  if (options.measure) print_peaks(context);
}

}  // namespace

void add_info(CLI::App& app, int&) {
  auto options = std::make_shared<Options>();
  CLI::App* sub = app.add_subcommand(
      "info",
      "Describe the machine, its instruction sets and the backends, and why one is missing");
  CLI::Option* measure =
      sub->add_flag("--measure", options->measure, "Measure the peaks (about a second)");
  add_threads_option(*sub, options->run.threads);
  add_isa_option(*sub, options->run.isa)->needs(measure);
  sub->footer("Examples:\n  attn info\n  attn info --measure --threads 1");
  sub->callback([options] { info(*options); });
}

}  // namespace attn::command
