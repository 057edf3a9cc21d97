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
  std::vector<Copy> copies{};        // from a rank to another, alone; by rising size
  double both_ways = 1;              // times a copy's, where another goes the other way
  double flag = 0;                   // seconds from a copy's end to a kernel that sees it
  double forward = 0, backward = 0;  // operations a second of a pass
  double beside_copies = 1;          // times a kernel's, while copies come or go
};

// Those that the library has numbers of.
const std::vector<Machine>& machines();
// Seconds of a copy: between two sizes, on the line through both; past the last, at its speed.
double copy_seconds(const Machine& machine, double bytes);

struct Prediction {
  double ideal = 0;    // all work divided by the ranks
  double slowest = 0;  // of the rank that ends last
  double busiest = 0;  // work of the rank that has most
  double exposed() const { return slowest - busiest; }
};

// One pass in which copy engines push the chunks of K and V, and a rank's one kernel begins with
// its own keys and takes others' as they come; backward, partial dK and dV go home as soon as they
// are ready, and half of the rank's own keys are left for last. Copies of a rank go one by one, at
// each distance to another rank in turn. Left out: launches, the sums of arrived gradients, more
// than one kind of link. Not compared with runs on GPUs yet (docs/scale-out.md).
Prediction predict(const Plan& plan, Phase phase, const Machine& machine);

}  // namespace dist
}  // namespace attn
