// What attn::append_kv writes, as it is defined (attn/append_kv.hpp), in fp64.
#pragma once

#include <cstdint>
#include <vector>

#include "core/append/append.hpp"
#include "reference/reference.hpp"

namespace attn::reference {

// A row of Q, K or V before it is rounded to the type of what is written. `precision`: f64 or f32,
// every step in double or in float (angles in double); the latter is the yardstick of the error
// rule.
std::vector<double> append_row(const core::AppendCall& call, const core::AppendPart& part,
                               const core::AppendRow& row, std::int64_t head,
                               Precision precision = Precision::f64);

// Stores it at `to`, with the scale that the part has or chooses for it, which is returned.
float store_appended_row(const core::AppendPart& part, const std::vector<double>& values,
                         std::int64_t head, std::byte* to);

// The whole call.
void append_kv(const core::AppendCall& call);

}  // namespace attn::reference
