// How long a plan of several ranks would take on GPUs, from measured times of copies and kernels.
#pragma once

#include <string>
#include <vector>

#include "attn/dist.hpp"
#include "attn/export.hpp"

namespace ATTN_API attn {  // NOLINT(modernize-concat-nested-namespaces): not with an attribute
namespace dist {

struct Copy {
  double bytes = 0, seconds = 0;
};

// What was measured of one kind of machine.
struct Machine {
  std::string name{}, source{};
  std::vector<Copy> copies{};  // from a rank to another, alone; by rising size
  std::vector<Copy> far{};     // the same between nodes, by links of their own
  int node = 0;                // ranks of a node, which follow each other; 0: all
  double both_ways = 1;        // times a copy's, where another goes the other way
  double flag = 0;             // seconds from a copy's end to a kernel that sees it
  double start = 0;            // seconds of a pass in which ranks meet and ask for work
  double own_rows = 0;  // bytes a second of the copy of a rank's own K and V; 0: takes no time
  double forward = 0, backward = 0;  // operations a second of a pass
  double beside_copies = 1;          // times a kernel's, while copies come or go
};

// Those that the library has numbers of.
const std::vector<Machine>& machines();
// Seconds of a copy: between two sizes, on the line through both; past the last, at its speed.
double copy_seconds(const std::vector<Copy>& copies, double bytes);

struct Prediction {
  double ideal = 0;      // all work divided by the ranks
  double slowest = 0;    // of the rank that ends last
  double busiest = 0;    // work of the rank that has most
  double far_bytes = 0;  // that pass between nodes, of all ranks
  double exposed() const { return slowest - busiest; }
};

// One pass of ranks that copy as local() has them: forward, groups of heads work one after another
// when their keys have come; backward, a rank works on half of its own keys, on others' as they
// come, and on the other half, beside which sums go home. Copies of a rank go one by one. Between
// nodes a chunk of K and V enters a node once, and sums of a node's ranks are added before they
// leave it, which the library does not do yet: NCCL's messages come before and after its kernels.
// Left out: the adding of arrived sums, tiles that are not filled, and what a mask or score cut in
// chunks costs kernels. docs/scale-out.md compares predictions with two GPUs.
Prediction predict(const Plan& plan, Phase phase, const Machine& machine);

}  // namespace dist
}  // namespace attn
