// What append_kv refuses: one sentence with the argument and its value, before anything is written.
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "attn/append_kv.hpp"
#include "attn/error.hpp"

namespace attn {
namespace {

// Two sequences of three new tokens, in pages of four rows.
struct Call {
  std::vector<float> q, k, v, to_q, to_k, to_v, cos, sin, weight, scale;
  std::vector<std::uint8_t> bytes;
  std::vector<std::int32_t> lengths{2, 7}, positions, table{3, 0, 1, 4}, starts{0, 3, 6};
  std::vector<std::int64_t> wide;  // integers that are not 32 bits
  AppendProblem problem;
  AppendInputs in;
  AppendOutputs out;

  Call()
      : q(2 * 3 * 4 * 8, 1.0f),
        k(2 * 3 * 2 * 8, 2.0f),
        v(k),
        to_q(q.size(), -1.0f),
        to_k(5 * 4 * 2 * 8, -1.0f),
        to_v(to_k),
        cos(10 * 4, 1.0f),
        sin(10 * 4, 0.0f),
        weight(8, 1.0f),
        scale(5 * 4 * 2, -1.0f),
        bytes(5 * 4 * 2 * 64, 0xa5),
        positions{2, 3, 4, 5, 6, 7} {
    in.q = tensor(q.data(), {2, 3, 4, 8});
    in.k = tensor(k.data(), {2, 3, 2, 8});
    in.v = tensor(v.data(), {2, 3, 2, 8});
    in.cache_seqlens = tensor(lengths.data(), {2});
    lengths[1] = 4;
    in.page_table = tensor(table.data(), {2, 2});
    in.cos = tensor(cos.data(), {10, 4});
    in.sin = tensor(sin.data(), {10, 4});
    out.q = tensor(to_q.data(), {2, 3, 4, 8});
    out.k = tensor(to_k.data(), {5, 4, 2, 8});
    out.v = tensor(to_v.data(), {5, 4, 2, 8});
  }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  void run() const { append_kv(problem, in, out); }
  bool untouched() const {
    const auto all = [](const auto& values, auto is) {
      for (const auto x : values) {
        if (x != is) return false;
      }
      return true;
    };
    return all(to_q, -1.0f) && all(to_k, -1.0f) && all(to_v, -1.0f) && all(scale, -1.0f) &&
           all(bytes, std::uint8_t{0xa5});
  }
  // The numbers in a shape as int64, one of them replaced.
  Tensor integers(const std::vector<std::int32_t>& values,
                  std::initializer_list<std::int64_t> shape, std::size_t at, std::int64_t value) {
    wide.assign(values.begin(), values.end());
    wide[at] = value;
    return tensor(wide.data(), shape);
  }
  Tensor rows_of_bytes(std::int64_t size) { return tensor(bytes.data(), {5, 4, 2, size}); }
};

TEST(AppendRefusals, TheCallThatIsSpoiltRuns) {
  Call call;
  call.run();
  EXPECT_FALSE(call.untouched());
  Call integers;
  integers.problem.type_k = CacheType::i8;
  integers.out.k = integers.rows_of_bytes(8);
  integers.out.scale_k = tensor(integers.scale.data(), {5, 4, 2});
  integers.run();
  EXPECT_FALSE(integers.untouched());
}

struct Refusal {
  const char* title;
  std::function<void(Call&)> spoil;
  const char* words;
  ErrorCode code = ErrorCode::invalid_argument;
};

constexpr std::int64_t kHigh = std::int64_t{1} << 32;
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

const Refusal kRefusals[] = {
    {"Nothing", [](Call& c) { c.in = {}; }, "q, k and v are not given"},
    {"RankOfQ", [](Call& c) { c.in.q.rank = 3; }, "q is f32[2, 3, 4]"},
    {"DtypeOfK", [](Call& c) { c.in.k.dtype = DType::i32; }, "k is i32[2, 3, 2, 8]"},
    {"F64",
     [](Call& c) {
       c.in.v = {nullptr, DType::f64, {}, 4, {0, 3, 2, 8}, {48, 16, 8, 1}};
     },
     "v is f64"},
    {"OtherTokens", [](Call& c) { c.in.k.shape[1] = 2; }, "accepted are the tokens of q"},
    {"HeadSizeOfQAndK", [](Call& c) { c.in.k.shape[3] = 7; }, "accepted is the head size of q"},
    {"HeadsOfV", [](Call& c) { c.in.v.shape[2] = 1; }, "accepted are the heads of k"},
    {"NoHeadSize", [](Call& c) { c.in.q.shape[3] = 0; }, "accepted are head sizes of 1 to 576"},
    {"StridesOfRows", [](Call& c) { c.in.k.strides[3] = 2; }, "k is f32[2, 3, 2, 8] strides"},
    {"CacheNotGiven", [](Call& c) { c.out.k = {}; }, "k of the outputs is not given"},
    {"QNotGiven", [](Call& c) { c.in.q = {}; }, "q of the outputs is given but q is not"},
    {"ShapeOfQ", [](Call& c) { c.out.q.shape[2] = 3; }, "q of the outputs is f32[2, 3, 3, 8]"},
    {"HeadsOfCache", [](Call& c) { c.out.k.shape[2] = 1; }, "k of the outputs is f32[5, 4, 1, 8]"},
    {"RingOfNoPages",
     [](Call& c) {
       c.problem.ring = true;
       c.in.page_table.shape[1] = 0;
     },
     "ring is true and a sequence has 0 rows in the caches"},
    {"PagesOfV", [](Call& c) { c.out.v.shape[0] = 4; }, "v of the outputs is f32[4, 4, 2, 8]"},
    {"BytesWithoutType", [](Call& c) { c.out.k = c.rows_of_bytes(8); },
     "k of the outputs is u8[5, 4, 2, 8]"},
    {"TypeOfBytes", [](Call& c) { c.problem.type_v = CacheType::e4m3; },
     "accepted are elements of u8, as the type is e4m3"},
    {"TypeF64", [](Call& c) { c.problem.type_k = CacheType::f64; }, "type_k is f64"},
    {"TypeUnknown", [](Call& c) { c.problem.type_k = static_cast<CacheType>(77); }, "type_k is 77"},
    {"Blocks",
     [](Call& c) {
       c.problem.type_k = CacheType::q8_0;
       c.out.k = c.rows_of_bytes(8);
     },
     "accepted are head sizes that 32 divides"},
    {"PairsUnknown", [](Call& c) { c.problem.rope_pairs = static_cast<RopePairs>(9); },
     "rope_pairs is 9"},
    {"BackendUnknown", [](Call& c) { c.problem.backend = static_cast<Backend>(9); },
     "backend is 9"},
    {"BackendOfAGpu", [](Call& c) { c.problem.backend = Backend::cuda; },
     "backend is cuda, the device of the tensors is cpu"},
    {"NormEps", [](Call& c) { c.problem.norm_eps = double{kNaN}; }, "norm_eps is nan"},
    {"WeightWithoutNorm", [](Call& c) { c.in.norm_weight_q = tensor(c.weight.data(), {8}); },
     "norm_weight_q is given but norm is false"},
    {"WeightOfOtherSize",
     [](Call& c) {
       c.problem.norm = true;
       c.in.norm_weight_k = tensor(c.weight.data(), {4});
     },
     "norm_weight_k is f32[4]"},
    {"CosAlone", [](Call& c) { c.in.sin = {}; }, "accepted are both or none"},
    {"CosAndFrequencies", [](Call& c) { c.in.inv_freq = tensor(c.weight.data(), {4}); },
     "cos is given but inv_freq is given"},
    {"TooManyPairs",
     [](Call& c) {
       c.in.cos = tensor(c.cos.data(), {8, 5});
       c.in.sin = tensor(c.sin.data(), {8, 5});
     },
     "accepted are 1 to 4 pairs of columns of q"},
    {"ShapeOfSin", [](Call& c) { c.in.sin.shape[0] = 9; }, "sin is f32[9, 4]"},
    {"PositionPastTheTable", [](Call& c) { c.in.cos.shape[0] = c.in.sin.shape[0] = 6; },
     "the rotary position of new row 5 is 6; accepted are 0 to 5"},
    {"NegativeRopePosition",
     [](Call& c) {
       c.positions[4] = -1;
       c.in.rope_positions = tensor(c.positions.data(), {2, 3});
     },
     "the rotary position of new row 4 is -1"},
    {"NoPositions", [](Call& c) { c.in.cache_seqlens = {}; },
     "cache_seqlens and positions are not given"},
    {"BothPositions",
     [](Call& c) {
       c.in.positions = tensor(c.positions.data(), {2, 3});
     },
     "positions is given but cache_seqlens is given"},
    {"ShapeOfLengths", [](Call& c) { c.in.cache_seqlens.shape[0] = 1; }, "cache_seqlens is i32[1]"},
    {"NegativeLength", [](Call& c) { c.lengths[1] = -4; }, "cache_seqlens[1] is -4"},
    {"MoreRowsThanThereAre",
     [](Call& c) {
       c.positions = {3, 4};
       c.in.seqused = tensor(c.positions.data(), {2});
     },
     "seqused[1] is 4; accepted are 0 to 3, the new rows of the sequence"},
    {"FewerRowsThanNone",
     [](Call& c) {
       c.in.seqused = c.integers({3, 3}, {2}, 0, -1);
     },
     "seqused[0] is -1"},
    {"ShapeOfRows", [](Call& c) { c.in.seqused = tensor(c.positions.data(), {6}); },
     "seqused is i32[6]"},
    {"RopePositionsWithoutRope",
     [](Call& c) {
       c.in.cos = c.in.sin = {};
       c.in.rope_positions = tensor(c.positions.data(), {2, 3});
     },
     "rope_positions is given but there is no rotary embedding"},
    {"PositionPastTheCache", [](Call& c) { c.lengths[0] = 6; },
     "the position of new row 2, of sequence 0, is 8; accepted are up to 7"},
    {"NoPage", [](Call& c) { c.table[3] = -1; },
     "page_table[1, 1] is -1; accepted are 0 to 4, the pages of the caches, as new row 3"},
    {"PagePastTheCache", [](Call& c) { c.table[0] = 5; }, "page_table[0, 0] is 5"},
    {"SamePlace",
     [](Call& c) {
       c.lengths[1] = 0;
       c.table[2] = 3;
     },
     "new rows 0 and 5 go to the same row of the caches"},
    {"SamePositionTwice",
     [](Call& c) {
       c.positions = {5, 2, 5, 4, 5, 6};
       c.in.cache_seqlens = {};
       c.in.positions = tensor(c.positions.data(), {2, 3});
     },
     "new rows 0 and 2 go to the same row of the caches"},
    // Numbers whose low halves would do.
    {"WideLength",
     [](Call& c) {
       c.in.cos = c.in.sin = {};
       c.in.cache_seqlens = c.integers({2, 4}, {2}, 1, kHigh + 4);
     },
     "the position of new row 3, of sequence 1, is 4294967300; accepted are up to 7"},
    {"WideLengthPastSums",
     [](Call& c) {
       c.in.cache_seqlens = c.integers({2, 4}, {2}, 0, INT64_MAX);
     },
     "cache_seqlens[0] is 9223372036854775807; accepted are 0 to 2^62"},
    {"WideRows",
     [](Call& c) {
       c.in.seqused = c.integers({3, 3}, {2}, 1, kHigh + 3);
     },
     "seqused[1] is 4294967299"},
    {"WidePosition",
     [](Call& c) {
       c.in.cache_seqlens = {};
       c.in.cos = c.in.sin = {};
       c.in.positions = c.integers({2, 3, 4, 5, 6, 7}, {2, 3}, 2, kHigh + 4);
     },
     "the position of new row 2, of sequence 0, is 4294967300; accepted are up to 7"},
    {"WideRopePosition",
     [](Call& c) {
       c.in.rope_positions = c.integers({2, 3, 4, 5, 6, 7}, {2, 3}, 1, kHigh + 3);
     },
     "the rotary position of new row 1 is 4294967299"},
    {"WidePage",
     [](Call& c) {
       c.in.page_table = c.integers({3, 0, 1, 4}, {2, 2}, 3, kHigh + 4);
     },
     "page_table[1, 1] is 4294967300; accepted are 0 to 4"},
    {"WideStarts",
     [](Call& c) {
       c.in.q = tensor(c.q.data(), {6, 4, 8});
       c.in.k = tensor(c.k.data(), {6, 2, 8});
       c.in.v = tensor(c.v.data(), {6, 2, 8});
       c.out.q = tensor(c.to_q.data(), {6, 4, 8});
       c.in.cu_seqlens = c.integers({0, 3, 6}, {3}, 2, kHigh + 6);
     },
     "cu_seqlens[2] is 4294967302; accepted are up to 6"},
    {"LengthsOfBytes", [](Call& c) { c.in.cache_seqlens.dtype = DType::u8; },
     "cache_seqlens is u8[2] strides (1) on cpu; accepted is i32 or i64 [2]"},
    {"BatchOfPages", [](Call& c) { c.in.page_table.shape[0] = 1; }, "page_table is i32[1, 2]"},
    {"BatchOfCache", [](Call& c) { c.in.page_table = {}; }, "k of the outputs is f32[5, 4, 2, 8]"},
    {"PagesOfNothing",
     [](Call& c) {
       c.in.k = c.in.v = {};
       c.out.k = c.out.v = {};
     },
     "page_table is given but k and v are not"},
    {"Starts",
     [](Call& c) {
       c.starts = {0, 4, 7};
       c.in.q = tensor(c.q.data(), {6, 4, 8});
       c.in.k = tensor(c.k.data(), {6, 2, 8});
       c.in.v = tensor(c.v.data(), {6, 2, 8});
       c.out.q = tensor(c.to_q.data(), {6, 4, 8});
       c.in.cu_seqlens = tensor(c.starts.data(), {3});
     },
     "cu_seqlens[2] is 7; accepted are up to 6"},
    {"PackedOfRank4", [](Call& c) { c.in.cu_seqlens = tensor(c.starts.data(), {3}); },
     "[total, heads, head_dim], as cu_seqlens is given"},
    {"ScaleOfFloats", [](Call& c) { c.in.scale_v = tensor(c.scale.data(), {1}); },
     "scale_v is given but the type of v is f32"},
    {"ScaleOfHeads",
     [](Call& c) {
       c.problem.type_k = CacheType::i8;
       c.out.k = c.rows_of_bytes(8);
       c.in.scale_k = tensor(c.scale.data(), {3});
     },
     "scale_k is f32[3]"},
    {"ScaleReadAndWritten",
     [](Call& c) {
       c.problem.type_k = CacheType::i8;
       c.out.k = c.rows_of_bytes(8);
       c.in.scale_k = tensor(c.weight.data(), {1});
       c.out.scale_k = tensor(c.scale.data(), {5, 4, 2});
     },
     "scale_k is given but scale_k of the outputs is given"},
    {"ShapeOfScales",
     [](Call& c) {
       c.problem.type_k = CacheType::i8;
       c.out.k = c.rows_of_bytes(8);
       c.out.scale_k = tensor(c.scale.data(), {5, 2, 4});
     },
     "scale_k of the outputs is f32[5, 2, 4]"},
    {"OverlappingCaches", [](Call& c) { c.out.v = c.out.k; }, "k of the outputs at address"},
    {"CacheOverInput", [](Call& c) { c.in.k.data = c.to_v.data(); }, "overlaps k at address"},
    {"QBesideItself",
     [](Call& c) {
       c.in.q.strides = {0, 8, 24, 1};
       c.out.q.data = c.q.data();
     },
     "q of the outputs at address"},
    {"RowsOfOnePlace", [](Call& c) { c.out.k.strides[1] = 0; }, "do not share memory"},
    {"OtherDevice",
     [](Call& c) {
       c.in.v.device = {DeviceType::cuda, 0};
     },
     "v is f32[2, 3, 2, 8]"},
};
void PrintTo(const Refusal& r, std::ostream* out) { *out << r.title; }

class AppendRefusals : public ::testing::TestWithParam<Refusal> {};

TEST_P(AppendRefusals, NameTheArgument) {
  Call call;
  GetParam().spoil(call);
  for (const Backend backend : {Backend::automatic, Backend::reference}) {
    if (call.problem.backend == Backend::automatic) call.problem.backend = backend;
    try {
      call.run();
      ADD_FAILURE() << "not refused";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), GetParam().code);
      EXPECT_NE(std::string(error.what()).find(GetParam().words), std::string::npos)
          << error.what();
    }
    EXPECT_TRUE(call.untouched());
  }
}

INSTANTIATE_TEST_SUITE_P(All, AppendRefusals, ::testing::ValuesIn(kRefusals),
                         [](const auto& info) { return std::string(info.param.title); });

}  // namespace
}  // namespace attn
