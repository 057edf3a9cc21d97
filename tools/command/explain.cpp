// attn explain: a page that shows how a problem is computed.
#include <fmt/format.h>

#include <limits>
#include <memory>

#include "attn/error.hpp"
#include "command/command.hpp"
#include "command/message.hpp"
#include "core/cache_type.hpp"
#include "core/text/echo.hpp"
#include "explain/page.hpp"
#include "explain/problem_json.hpp"
#include "io/output_file.hpp"
#include "verify/case.hpp"

namespace attn::command {
namespace {

struct ExplainOptions {
  std::string descriptor, output, algorithm, phase = "forward";
  std::int64_t batch = 0, head = 0, block_q = 0, block_k = 0;
  std::uint64_t seed = 1;
};

// The finest tile map that the page has room for.
std::string page_of(const explain::Request& request) {
  constexpr std::int64_t kMostCells = 64, kFewestCells = 8;
  explain::Json json = explain::problem_json(request, kMostCells);
  for (std::int64_t cells = kMostCells;;) {
    std::string page = explain::page(to_string(request.problem), json);
    if (page.size() <= explain::kMaxPageBytes) return page;
    if (cells < kFewestCells) {
      throw Error(ErrorCode::unsupported,
                  fmt::format("the page takes {} bytes; accepted are {} (problem {})", page.size(),
                              explain::kMaxPageBytes, core::echo(request.problem)));
    }
    cells = cells * 3 / 4;
    json["map"] = explain::map_json(request, cells);
  }
}

int explain_problem(const ExplainOptions& options) {
  io::OutputFile::check(options.output);
  explain::Request request{.problem = verify::parse_case(options.descriptor).problem,
                           .phase = options.phase == "forward" ? Phase::forward : Phase::backward,
                           .batch = options.batch,
                           .head = options.head,
                           .block_q = options.block_q,
                           .block_k = options.block_k,
                           .seed = options.seed};
  if (request.problem.seqlen_prefix > 0) {
    throw Error(ErrorCode::unsupported,
                fmt::format("seqlen_prefix is {}; accepted by explain is 0 (problem {})",
                            request.problem.seqlen_prefix, core::echo(request.problem)));
  }
  if (request.problem.key_list > 0) {
    throw Error(ErrorCode::unsupported,
                fmt::format("key_list is {}; accepted by explain is 0, no lists (problem {})",
                            request.problem.key_list, core::echo(request.problem)));
  }
  if (core::has_own_type_o(request.problem)) {
    throw Error(ErrorCode::unsupported,
                fmt::format("type_o is {}; accepted by explain is dtype (problem {})",
                            name(request.problem.type_o), core::echo(request.problem)));
  }
  if (core::has_own_types(request.problem) || core::has_own_type_q(request.problem)) {
    throw Error(ErrorCode::unsupported,
                fmt::format("type_q is {}, type_k is {} and type_v is {}; accepted by explain is "
                            "as_q (problem {})",
                            name(request.problem.type_q), name(request.problem.type_k),
                            name(request.problem.type_v), core::echo(request.problem)));
  }
  if (!options.algorithm.empty()) request.algorithm = parse_algorithm(options.algorithm);
  const std::string page = page_of(request);
  io::OutputFile file(options.output);
  file.write(page);
  file.commit();
  fmt::print("page of {} written to {}\n", core::echo(request.problem), shown(options.output));
  return kOk;
}

}  // namespace

void add_explain(CLI::App& app, int& status) {
  auto options = std::make_shared<ExplainOptions>();
  CLI::App* sub = app.add_subcommand(
      "explain", "Write a page that shows how a problem is computed, step by step");
  sub->add_option("descriptor", options->descriptor, "Problem in text form (docs/descriptors.md)")
      ->required();
  sub->add_option("--output,-o", options->output, "The page: one HTML file that needs no network")
      ->type_name("FILE")
      ->required()
      ->take_last();
  add_algorithm_option(*sub, options->algorithm);
  sub->add_option("--phase", options->phase, "forward or backward: which the page opens with")
      ->check(CLI::IsMember({"forward", "backward"}))
      ->capture_default_str()
      ->take_last();
  constexpr std::uint64_t kMost = 2'147'483'647;
  const auto number = [&](const char* name, std::int64_t& value, std::uint64_t least,
                          const char* description) {
    sub->add_option(name, value, description)->check(whole_number(least, kMost))->take_last();
  };
  number("--batch", options->batch, 0, "The sequence whose tiles are shown; default: the first");
  number("--head", options->head, 0, "The query head whose tiles are shown; default: the first");
  number("--block-q", options->block_q, 1, "Queries of a tile of the map; default: the plan's");
  number("--block-k", options->block_k, 1, "Keys of a tile of the map; default: the plan's");
  sub->add_option("--seed", options->seed, "Of the sample and of buffers, which are made up")
      ->check(whole_number(0, std::numeric_limits<std::uint64_t>::max()))
      ->capture_default_str()
      ->take_last();
  sub->footer(
      "Examples:\n"
      "  attn explain b1_n4096_h16_d128_causal_bf16 -o causal.html\n"
      "  attn explain 'n8192_d64_mask(key<4||(key<=position&&position-key<1024))' -o sinks.html\n"
      "  attn explain b8_sq1_sk32768_hq32_hk8_d128_bf16 -o decoding.html");
  sub->callback([options, &status] { status = explain_problem(*options); });
}

}  // namespace attn::command
