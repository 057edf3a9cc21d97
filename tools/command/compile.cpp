// attn compile: fills the cache of GPU kernels ahead of time, on a machine that needs no GPU.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <optional>

#include "attn/error.hpp"
#include "attn/problem.hpp"
#include "command/command.hpp"
#include "command/json_report.hpp"
#include "command/message.hpp"
#include "core/validate/validate.hpp"
#include "cuda/cuda.hpp"
#include "cuda/driver/device.hpp"
#include "cuda/jit/disk_cache.hpp"

namespace attn::command {
namespace {

struct CompileOptions {
  std::vector<std::string> descriptors, archs;
  std::string cache_dir, kernel, phase = "forward", json;
  bool strict = false, deterministic = false, batch_invariant = false;
  cuda::AskedFor asked;
};

// The architectures that are named, or those of the devices here, where none is.
std::vector<cuda::Arch> architectures(const std::vector<std::string>& names) {
  std::vector<cuda::Arch> archs;
  for (const std::string& name : names) archs.push_back(cuda::parse_arch(name));
  if (!archs.empty()) return archs;
  for (int device = 0; device < cuda::device_count(); ++device) {
    const cuda::Arch arch = cuda::arch_of_capability(cuda::device_info(device).arch);
    if (std::find(archs.begin(), archs.end(), arch) == archs.end()) archs.push_back(arch);
  }
  if (archs.empty()) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("--arch is not given and {}; accepted are names as sm_80 and sm_90a",
                            cuda::why_no_driver().value_or("no GPU is here")));
  }
  return archs;
}

// Serialised wgmma never; spills, and the local memory they lie in, up to what the source allows.
bool clean(const cuda::Report& report, int allowed) {
  const bool spills_only =
      std::all_of(report.warnings.begin(), report.warnings.end(), [&](const std::string& warning) {
        return allowed > 0 && warning.find("spilled") != std::string::npos;
      });
  return spills_only && report.spill_store_bytes <= allowed && report.spill_load_bytes <= allowed &&
         report.local_bytes <= allowed;
}

Json row(const std::string& descriptor, cuda::Arch arch, const cuda::Source& source,
         const cuda::Report& report) {
  return {{"problem", descriptor},
          {"arch", to_string(arch)},
          {"kernel", source.name},
          {"registers", report.registers},
          {"spill_store_bytes", report.spill_store_bytes},
          {"spill_load_bytes", report.spill_load_bytes},
          {"local_bytes", report.local_bytes},
          {"shared_bytes", report.shared_bytes},
          {"warnings", report.warnings},
          {"seconds", report.seconds},
          {"from_cache", report.from_cache},
          {"clean", clean(report, source.allowed_spill_bytes)}};
}

int compile(const CompileOptions& options, const std::string& command_line) {
  JsonReport json(options.json, command_line);
  Context context;
  context.log = [](std::string_view message) { tell(fmt::format("attn: {}\n", message)); };
  const Phase phase = options.phase == "forward" ? Phase::forward : Phase::backward;
  const std::vector<cuda::Arch> archs = architectures(options.archs);
  std::string folder = options.cache_dir;
  if (folder.empty()) {
    const std::optional<std::string> standard = cuda::default_cache_folder();
    if (!standard) {
      throw Error(
          ErrorCode::invalid_argument,
          "--cache-dir is not given and ATTN_CACHE_DIR and HOME name no folder; accepted is "
          "a folder");
    }
    folder = *standard;
  }
  int unclean = 0;
  for (const std::string& descriptor : options.descriptors) {
    const Problem problem = parse_problem(descriptor);
    core::validate_problem(problem);
    for (const cuda::Arch arch : archs) {
      const PlanOptions plan{.device = {DeviceType::cuda, 0},
                             .kernel = options.kernel,
                             .deterministic = options.deterministic,
                             .batch_invariant = options.batch_invariant};
      core::validate_options(problem, phase, plan, context);
      for (const cuda::Source& source : cuda::sources(problem, phase, arch, plan, options.asked)) {
        const cuda::Report report = cuda::compile_into(source, arch, context, folder).report;
        json.add(row(descriptor, arch, source, report));
        fmt::print(json.text(), "{} {} {}: {}\n", descriptor, to_string(arch), source.name,
                   to_string(report));
        if (!clean(report, source.allowed_spill_bytes)) ++unclean;
      }
    }
  }
  json.save();
  if (options.strict && unclean > 0) {
    tell(
        fmt::format("attn: {} of the kernels spill, use local memory or have warnings\n", unclean));
    return kWrong;
  }
  return kOk;
}

}  // namespace

void add_compile(CLI::App& app, int& status, const std::string& command_line) {
  auto options = std::make_shared<CompileOptions>();
  CLI::App* sub = app.add_subcommand(
      "compile", "Compile the GPU kernels of problems into the cache; needs NVRTC, no GPU");
  sub->add_option("descriptors", options->descriptors,
                  "Problems in text form (docs/descriptors.md), or @file with a list of them")
      ->required();
  sub->add_option("--arch", options->archs,
                  "sm_80, sm_90a, ..., separated by commas; default: those of the GPUs here")
      ->delimiter(',')
      ->allow_extra_args(false);
  sub->add_option("--phase", options->phase, "forward or backward")
      ->check(CLI::IsMember({"forward", "backward"}))
      ->capture_default_str();
  add_kernel_option(*sub, options->kernel);
  add_deterministic_flag(*sub, options->deterministic);
  add_batch_invariant_flag(*sub, options->batch_invariant);
  sub->add_flag("--max-logit", options->asked.max_logit,
                "Those of forward calls that ask for the largest score of each head");
  sub->add_flag("--float-sums", options->asked.float_sums,
                "Backward: with dK and dV in f32, as ranks of GPUs add them (docs/scale-out.md)");
  sub->add_option("--cache-dir", options->cache_dir,
                  "Default: ATTN_CACHE_DIR, or attn in the user's cache folder")
      ->type_name("FOLDER");
  sub->add_flag(
      "--strict", options->strict,
      "Exit code 1 where a kernel spills more registers than the table of its tile shapes "
      "allows, uses other local memory or has a warning");
  add_json_option(*sub, options->json);
  sub->footer(
      "Examples:\n"
      "  attn compile b1_n4096_h16_d128_causal_bf16 --arch sm_90a\n"
      "  attn compile @problems.txt --arch sm_80,sm_90a --cache-dir /opt/app/kernels --strict");
  sub->callback([options, &status, command_line] { status = compile(*options, command_line); });
}

}  // namespace attn::command
