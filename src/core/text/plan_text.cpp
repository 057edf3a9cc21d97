// A plan as text, for people.
#include <fmt/format.h>

#include "attn/plan.hpp"

namespace attn {

std::string to_string(const Plan& plan) {
  std::string text = fmt::format("{} of {}\n", name(plan.phase), to_string(plan.problem));
  text += fmt::format("  {} on the {} backend", name(plan.algorithm), name(plan.backend));
  if (plan.backend == Backend::cpu) {
    text += fmt::format(", {}, {} operands, {} {}\n", name(plan.isa), name(plan.compute),
                        plan.threads, plan.threads == 1 ? "thread" : "threads");
    text +=
        fmt::format("  blocks of {} rows x {} keys; {} tasks, {} rows a task, {} {} of the keys\n",
                    plan.block_q, plan.block_k, plan.tasks, plan.rows_per_task, plan.num_splits,
                    plan.num_splits == 1 ? "part" : "parts");
  } else if (plan.backend == Backend::cuda) {
    const Launch& l = plan.launch;
    text += fmt::format(" of {}, {} operands\n", to_string(plan.device), name(plan.compute));
    text += fmt::format(
        "  kernel {} for {}: {} x {} x {} blocks of {} threads, clusters of {}, {:.4g} KiB of "
        "shared "
        "memory\n",
        l.kernel, l.arch, l.grid[0], l.grid[1], l.grid[2], l.threads, l.cluster,
        static_cast<double>(l.shared_bytes) / 1024);
    text += fmt::format("  tiles of {} rows x {} keys, {} in flight; {} tasks, {} {} of the keys\n",
                        plan.block_q, plan.block_k, l.stages, plan.tasks, plan.num_splits,
                        plan.num_splits == 1 ? "part" : "parts");
  } else {
    text += ", one thread\n";
  }
  text += fmt::format("  {:.4g} GFLOP, {:.4g} MB in and out, at most {:.4g} MB of workspace",
                      plan.flops() * 1e-9, plan.bytes * 1e-6,
                      static_cast<double>(plan.workspace_bytes) * 1e-6);
  for (const std::string& reason : plan.reasons) text += fmt::format("\n  {}", reason);
  return text;
}

}  // namespace attn
