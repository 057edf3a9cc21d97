// attn info: what this machine is, what can run on it, and what it reaches.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <memory>
#include <optional>
#include <vector>

#include "attn/machine.hpp"
#include "attn/version.hpp"
#include "command/command.hpp"
#include "command/gpu_json.hpp"
#include "command/json_report.hpp"
#include "cuda/driver/device.hpp"
#include "cuda/driver/nvrtc.hpp"
#include "cuda/jit/disk_cache.hpp"

namespace attn::command {
namespace {

struct InfoOptions {
  bool measure = false;
  RunOptions run;
  std::string json;
};

std::string size_or_unknown(std::int64_t bytes) {
  return bytes == 0 ? "unknown" : format_bytes(static_cast<double>(bytes));
}

// Says everything twice: a line for people, a member of the row for programs.
class Info {
 public:
  Info(const InfoOptions& options, const std::string& command_line)
      : options_(options), report_(options.json, command_line) {}

  void tell() {
    const Context context = make_context(options_.run);
    const Machine machine = describe_machine();
    line("version", ATTN_VERSION_STRING);
    line("cpu", machine.cpu);
    line("cpus", fmt::format("{}", machine.cpus));
    line("caches",
         fmt::format("L1d {}, L2 {}, L3 {}", size_or_unknown(machine.l1d_bytes),
                     size_or_unknown(machine.l2_bytes), size_or_unknown(machine.l3_bytes)));
    line("memory", size_or_unknown(machine.memory_bytes));
    line("threads", fmt::format("{}", context.executor->concurrency()));
    row_["threads"] = context.executor->concurrency();
    tell_instruction_sets();
    tell_backends();
    tell_gpus();
    tell_nvrtc();
    if (options_.measure) tell_peaks(context);
    report_.add(row_);
    report_.save();
  }

 private:
  void line(std::string_view title, std::string_view text) const {
    fmt::print(report_.text(), "{:<18}{}\n", title, text);
  }

  void tell_instruction_sets() {
    std::string_view title = "instruction sets";
    const std::vector<InstructionSetInfo> sets = instruction_sets();
    InstructionSet best{};
    for (const InstructionSetInfo& info : sets) {
      if (info.available) best = info.isa;
    }
    for (const InstructionSetInfo& info : sets) {
      line(title, fmt::format("{:<12} {}", name(info.isa),
                              !info.available    ? "not available: " + info.reason
                              : info.isa == best ? "available, used when none is asked for"
                                                 : "available"));
      title = "";
      row_["instruction_sets"].push_back({{"name", name(info.isa)},
                                          {"available", info.available},
                                          {"reason", info.reason},
                                          {"best", info.isa == best}});
    }
  }

  void backend(std::string_view title, std::string_view name, const std::string& what,
               const std::optional<std::string>& missing) {
    line(title, missing ? fmt::format("{:<12} not available: {}", name, *missing)
                        : fmt::format("{:<12} available: {}", name, what));
    row_["backends"].push_back(
        {{"name", name}, {"available", !missing.has_value()}, {"reason", missing.value_or("")}});
  }

  void tell_backends() {
    backend("backends", "cpu", "kernels for the instruction sets above", std::nullopt);
    backend("", "reference", "the definition in fp64, one thread, slow", std::nullopt);
    backend("", "cuda", "kernels compiled at run time", cuda::why_unavailable());
    for (const Phase phase : {Phase::forward, Phase::backward}) {
      std::vector<std::string_view> names;
      for (const Algorithm algorithm : algorithms(phase)) names.push_back(name(algorithm));
      line(fmt::format("{} by", name(phase)), fmt::format("{}", fmt::join(names, ", ")));
      row_["algorithms"][std::string(name(phase))] = names;
    }
  }

  void tell_gpus() {
    row_["gpus"] = Json::array();
    for (int device = 0; device < cuda::device_count(); ++device) {
      const cuda::DeviceInfo& info = cuda::device_info(device);
      line(fmt::format("cuda:{}", device),
           fmt::format("{}, compute capability {}.{}, {} SMs, {} of memory, L2 {}, {} of shared "
                       "memory a block",
                       info.name, info.arch / 10, info.arch % 10, info.sm_count,
                       format_bytes(static_cast<double>(info.memory_bytes)),
                       format_bytes(static_cast<double>(info.l2_bytes)),
                       format_bytes(static_cast<double>(info.shared_bytes_per_block))));
      row_["gpus"].push_back(gpu_json(info));
    }
  }

  void tell_nvrtc() {
    const cuda::Api* api = cuda::try_api();
    if (api != nullptr) {
      line("NVIDIA driver", "CUDA " + cuda::version_text(api->driver_version));
    }
    row_["driver"] = api != nullptr ? Json(cuda::version_text(api->driver_version)) : Json(nullptr);
    row_["nvrtc"] = nullptr;
    row_["kernel_cache"] = nullptr;
    if (const std::optional<std::string> missing = cuda::why_no_nvrtc()) {
      line("NVRTC", "not available: " + *missing);
      return;
    }
    const std::string version = cuda::version_text(cuda::nvrtc().version);
    const std::optional<std::string> cache = cuda::default_cache_folder();
    line("NVRTC", fmt::format("{} at {}", version, cuda::nvrtc().path));
    line("kernel cache", cache.value_or("off"));
    row_["nvrtc"] = {{"version", version}, {"path", cuda::nvrtc().path}};
    if (cache) row_["kernel_cache"] = *cache;
  }

  void tell_peaks(const Context& context) {
    std::string_view title = "measured peaks";
    for (const DType dtype : {DType::f32, DType::bf16}) {
      const double gflops = measure_peak_gflops(dtype, context);
      line(title, fmt::format("{:<12} {:.1f} GFLOP/s", name(dtype), gflops));
      title = "";
      row_["peaks"][fmt::format("{}_gflops", name(dtype))] = gflops;
    }
    const double gbps = measure_read_gbps(context);
    line("", fmt::format("{:<12} {:.1f} GB/s", "memory read", gbps));
    row_["peaks"]["read_gbps"] = gbps;
  }

  const InfoOptions& options_;
  JsonReport report_;
  Json row_ = Json::object();
};

}  // namespace

void add_info(CLI::App& app, int&, const std::string& command_line) {
  auto options = std::make_shared<InfoOptions>();
  CLI::App* sub = app.add_subcommand(
      "info",
      "Describe the machine, its instruction sets and the backends, and why one is missing");
  CLI::Option* measure =
      sub->add_flag("--measure", options->measure, "Measure the peaks (about a second)");
  add_threads_option(*sub, options->run.threads);
  add_isa_option(*sub, options->run.isa)->needs(measure);
  add_json_option(*sub, options->json);
  sub->footer("Examples:\n  attn info\n  attn info --measure --threads 1\n  attn info --json -");
  sub->callback([options, command_line] { Info(*options, command_line).tell(); });
}

}  // namespace attn::command
