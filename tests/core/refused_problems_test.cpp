#include <cmath>
#include <limits>

#include "attn/scalar.hpp"
#include "core/refusals.hpp"

namespace attn::testing {
namespace {

constexpr std::int64_t kHuge = std::numeric_limits<std::int64_t>::max();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

void give_rng_state(Call& c, DType dtype, std::int64_t numbers) {
  c.problem.dropout.rng_state = true;
  c.in.rng_state = c.zeros(dtype, {numbers});
}

const Refusal kProblems[] = {
    // Sizes
    {"BatchMismatch",
     dense_call,
     [](Call& c) { c.problem.batch = 3; },
     {"q is f32[2, 5, 4, 8]", "accepted is f32[3, 5, 4, 8]"}},
    {"SeqlenMismatch",
     dense_call,
     [](Call& c) { c.problem.seqlen_k = 8; },
     {"k is f32[2, 7, 2, 8]"}},
    {"HeadDimMismatch",
     dense_call,
     [](Call& c) { c.problem.head_dim_v = 7; },
     {"v is f32[2, 7, 2, 6]"}},
    {"NegativeBatch", dense_call, [](Call& c) { c.problem.batch = -1; }, {"batch is -1", "0 to"}},
    {"NegativeHeads", dense_call, [](Call& c) { c.problem.heads_q = -4; }, {"heads_q is -4"}},
    {"HeadsDoNotDivide",
     dense_call,
     [](Call& c) { c.in.q.shape[2] = 3; },
     {"heads_q is 3 and heads_k is 2", "multiples"}},
    {"NoHeads",
     dense_call,
     [](Call& c) { c.in.k.shape[2] = c.in.v.shape[2] = 0; },
     {"heads_k is 0"}},
    {"HeadDimTooLarge",
     dense_call,
     [](Call& c) { c.problem.head_dim = 577; },
     {"head_dim is 577", "1 to 576"}},
    {"HeadDimZero",
     dense_call,
     [](Call& c) { c.in.q.shape[3] = c.in.k.shape[3] = 0; },
     {"head_dim is 0"}},
    {"SeqlenTooLarge",
     dense_call,
     [](Call& c) { c.problem.seqlen_q = std::int64_t{1} << 31; },
     {"seqlen_q is 2147483648", "0 to 2147483647"}},
    {"BatchTimesHeads",
     dense_call,
     [](Call& c) {
       c.problem.batch = 1 << 30;
       c.problem.heads_q = 8;
     },
     {"batch * heads_q is 1073741824 * 8", "4294967295"}},
    {"ProductOverflows",
     dense_call,
     [](Call& c) {
       c.problem.batch = 1 << 29;
       c.problem.seqlen_k = 1 << 30;
     },
     {"batch * seqlen_k * heads_k", "products below 2^50"}},
    {"ShapeOverflows",
     dense_call,
     [](Call& c) {
       c.in.q.shape = {std::int64_t{1} << 32, std::int64_t{1} << 32, 4, 8};
     },
     {"q is f32[4294967296, 4294967296, 4, 8]", "2^60 bytes"}},
    {"StrideOverflows",
     dense_call,
     [](Call& c) { c.in.k.strides[0] = kHuge; },
     {"k is", "2^60 bytes"}},
    {"StrideUnderflows",
     dense_call,
     [](Call& c) { c.in.v.strides[0] = std::numeric_limits<std::int64_t>::min(); },
     {"v is", "2^60 bytes"}},
    // Scalars
    {"ScalarOfRankOne",
     dense_call,
     [](Call& c) {
       c.problem.mask = expr::symbols().key < expr::scalar("w", 3);
       c.in.buffers = {{"w", c.integers({3})}};
     },
     {"buffer 'w' is i32 of rank 1 on cpu", "a scalar, i32 of rank 0 on cpu"}},
    {"ScalarOfOtherType",
     dense_call,
     [](Call& c) {
       c.problem.mask = expr::symbols().key < expr::scalar("w", 3.5);
       Tensor three = c.integers({3});
       three.rank = 0;
       c.in.buffers = {{"w", three}};
     },
     {"buffer 'w' is i32 of rank 0 on cpu", "f32 of rank 0"}},
    {"ScalarWithoutValue",
     dense_call,
     [](Call& c) { c.problem.mask = parse_problem("d8_mask(key<w)_scalar(w:i32)").mask; },
     {"buffer 'w' is a scalar without a value", "bound to its name"}},
    {"ScalarMisaligned",
     dense_call,
     [](Call& c) {
       c.problem.mask = expr::symbols().key < expr::scalar("w", 3);
       Tensor three = c.integers({3});
       three.rank = 0;
       three.data = static_cast<char*>(three.data) + 1;
       c.in.buffers = {{"w", three}};
     },
     {"buffer 'w' has data at address", "multiples of 4"}},
    {"ScalarsOfOneName",
     dense_call,
     [](Call& c) {
       const auto& s = expr::symbols();
       c.problem.mask = s.key < expr::scalar("w", 3) && s.query < expr::scalar("w", 4);
     },
     {"'w' stands for two tensors", "the scalar 3 of i32 and the scalar 4 of i32"}},
    // Numbers
    {"NaNScale",
     dense_call,
     [](Call& c) { c.problem.softmax_scale = kNaN; },
     {"softmax_scale is nan", "finite"}},
    {"InfiniteScale",
     dense_call,
     [](Call& c) { c.problem.softmax_scale = INFINITY; },
     {"softmax_scale is inf"}},
    {"ScaleOutOfFloat",
     dense_call,
     [](Call& c) { c.problem.softmax_scale = 1e39; },
     {"softmax_scale is 1e+39", "2^127"}},
    {"DTypeOfOtherTensors",
     dense_call,
     [](Call& c) { c.problem.dtype = DType::bf16; },
     {"q is f32[2, 5, 4, 8]", "dtype is bf16"}},
    // f32 is the default, but not when it is said.
    {"DTypeF32OfOtherTensors",
     dense_call,
     [](Call& c) {
       c.problem.dtype = DType::f32;
       c.in.q.dtype = DType::bf16;
     },
     {"q is bf16[2, 5, 4, 8]", "dtype is f32; accepted are tensors of that dtype"}},
    {"DropoutOne",
     dense_call,
     [](Call& c) { c.problem.dropout.probability = 1; },
     {"dropout probability is 1", "0 up to"}},
    {"DropoutNegative",
     dense_call,
     [](Call& c) { c.problem.dropout.probability = -0.5; },
     {"is -0.5"}},
    {"DropoutNaN", dense_call, [](Call& c) { c.problem.dropout.probability = kNaN; }, {"is nan"}},
    // Sink, expressions and their buffers
    {"NoSink", dense_call, [](Call& c) { c.in.sink = {}; }, {"sink is not given", "f32[4]"}},
    {"SinkNotAskedFor",
     dense_call,
     [](Call& c) { c.problem.sink = false; },
     {"sink is given but problem.sink is false"}},
    {"DSinkNotAskedFor",
     packed_call,
     [](Call& c) { c.grad.dsink = c.zeros(DType::f32, {4}); },
     {"dsink is given but problem.sink is false"},
     kBackward},
    {"ShapeOfSink", dense_call, [](Call& c) { c.in.sink.shape[0] = 3; }, {"sink is f32[3]"}},
    {"NoRngState",
     dense_call,
     [](Call& c) { c.problem.dropout.rng_state = true; },
     {"rng_state is not given", "accepted is i64[2]"}},
    {"RngStateNotAskedFor",
     dense_call,
     [](Call& c) { c.in.rng_state = c.zeros(DType::i64, {2}); },
     {"rng_state is given but problem.dropout.rng_state is false; accepted is none"}},
    {"DTypeOfRngState",
     dense_call,
     [](Call& c) { give_rng_state(c, DType::i32, 2); },
     {"rng_state is i32[2]", "accepted is i64[2]"}},
    {"ShapeOfRngState",
     dense_call,
     [](Call& c) { give_rng_state(c, DType::i64, 3); },
     {"rng_state is i64[3]", "accepted is i64[2]"}},
    {"StrideOfRngState",
     dense_call,
     [](Call& c) {
       give_rng_state(c, DType::i64, 2);
       c.in.rng_state.strides[0] = 0;
     },
     {"rng_state is i64[2]", "contiguous"}},
    {"DeviceOfRngState",
     dense_call,
     [](Call& c) {
       give_rng_state(c, DType::i64, 2);
       c.in.rng_state.device = {DeviceType::cuda, 0};
     },
     {"rng_state is i64[2]", "accepted are tensors on cpu"}},
    {"GradientOverRngState",
     dense_call,
     [](Call& c) {
       give_rng_state(c, DType::i64, 2);
       c.in.rng_state.data = c.grad.dq.data;
     },
     {"dq", "overlaps rng_state"},
     kBackward},
    {"MaskOfScore",
     dense_call,
     [](Call& c) { c.problem.mask = expr::symbols().score > 0.0f; },
     {"mask is", "depends on score"}},
    {"MaskNotBoolean",
     dense_call,
     [](Call& c) { c.problem.mask = expr::symbols().query; },
     {"mask is", "not boolean"}},
    {"ScoreNotFloat",
     dense_call,
     [](Call& c) { c.problem.score = expr::symbols().query + 1; },
     {"score is", "not float32"}},
    {"BufferWithoutData",
     dense_call,
     [](Call& c) {
       c.problem.score =
           bias(tensor(static_cast<float*>(nullptr), {1, kHeadsQ, kSeqlenQ, kSeqlenK}));
     },
     {"buffer 'bias' is f32[1, 4, 5, 7]", "without data", "bound to its name in buffers"}},
    {"BufferDType",
     dense_call,
     [](Call& c) {
       c.in.buffers = {{"bias", c.zeros(DType::bf16, {1, 4, 5, 7})}};
     },
     {"buffer 'bias' is bf16", "f32 tensors of rank 4"}},
    {"BufferRank",
     dense_call,
     [](Call& c) {
       c.in.buffers = {{"bias", c.zeros(DType::f32, {5, 7})}};
     },
     {"buffer 'bias' is f32[5, 7]", "rank 4"}},
    {"BufferBroadcast",
     dense_call,
     [](Call& c) {
       c.in.buffers = {{"bias", c.zeros(DType::f32, {2, 4, 5, 7})}};
     },
     {"buffer 'bias' is f32[2, 4, 5, 7]", "size 1 in dimension 0"}},
    {"BufferOfAnotherShape",
     dense_call,
     [](Call& c) {
       c.in.buffers = {{"bias", c.zeros(DType::f32, {1, 4, 5, 8})}};
     },
     {"buffer 'bias' is f32[1, 4, 5, 8]", "size 7 in dimension 3, as declared"}},
    {"HandWrittenBufferOfAnotherShape",
     dense_call,
     [](Call& c) {
       const Tensor w = tensor(static_cast<float*>(nullptr), {4});
       c.problem.score = expr::symbols().score + expr::Buffer("w", w)[expr::symbols().head];
       c.in.buffers = {{"w", c.zeros(DType::f32, {2})}};
     },
     {"buffer 'w' is f32[2]", "size 4 in dimension 0"}},
    {"TransposedBias",
     dense_call,
     [](Call& c) {
       c.problem.score = bias(c.zeros(DType::f32, {1, 4, 7, 5}));
     },
     {"buffer 'bias' of bias is f32[1, 4, 7, 5]", "accepted is [2, 4, 5, 7]"}},
    {"BiasOfThreeHeads",
     dense_call,
     [](Call& c) {
       c.problem.score = bias(c.zeros(DType::f32, {1, 3, 5, 7}));
     },
     {"f32[1, 3, 5, 7]", "accepted is [2, 4, 5, 7]"}},
    {"BiasByPosition",
     dense_call,
     [](Call& c) {
       c.problem.score = bias(c.zeros(DType::f32, {5, 7}), Alignment::bottom_right);
     },
     {"f32[5, 7]", "accepted is [7, 7]"}},
    {"BiasOfOpenShape",
     dense_call,
     [](Call& c) {
       c.problem.score = bias(tensor(static_cast<float*>(nullptr), {1, 0, 5, 7}));
       c.in.buffers = {{"bias", c.zeros(DType::f32, {1, 3, 5, 7})}};
     },
     {"f32[1, 3, 5, 7]", "accepted is [2, 4, 5, 7]"}},
    {"TwoSlopesForFourHeads",
     dense_call,
     [](Call& c) { c.problem.score = alibi(c.zeros(DType::f32, {2})); },
     {"buffer 'slopes' of alibi is f32[2]", "accepted is [4]"}},
    {"DocumentsTooShort",
     dense_call,
     [](Call& c) {
       c.problem.mask = causal() && documents(c.zeros(DType::i32, {2, 5}));
     },
     {"buffer 'ids' of documents is i32[2, 5]", "accepted is [2, 7]"}},
    {"DocumentsOfRowsTooShort",
     dense_call,
     [](Call& c) {
       c.problem.mask = documents(c.zeros(DType::i32, {4}), c.zeros(DType::i32, {7}));
     },
     {"buffer 'ids_q' of documents is i32[4]", "accepted is [5]"}},
    {"TreeWithoutAWordOfItsOwn",  // 40 rows have two words each
     dense_call,
     [](Call& c) {
       c.in.q = c.zeros(DType::f32, {2, 40, 4, 8});
       c.problem.mask = tree_mask(c.zeros(DType::i32, {2, 40, 1}));
     },
     {"buffer 'tree' of a tree mask is i32[2, 40, 1]", "accepted is [2, 40, 2]"}},
    {"TreeOfOneRowForAll",
     dense_call,
     [](Call& c) {
       c.problem.mask = tree_mask(tensor(static_cast<std::int32_t*>(nullptr), {0, 0, 0}));
       c.in.buffers = {{"tree", c.zeros(DType::i32, {2, 1, 1})}};
     },
     {"i32[2, 1, 1]", "accepted is [2, 5, 1]", "a size of 1 serves every batch entry"}},
    {"BlocksOfRows",
     dense_call,
     [](Call& c) { c.problem.mask = BlockMask::butterfly(kSeqlenQ, kSeqlenK, 2).mask(); },
     {"buffer 'block_mask' of a block mask is u8[3, 4]", "accepted is [4, 4]"}},
    {"OneBlockForAllScores",
     dense_call,
     [](Call& c) { c.problem.mask = BlockMask(1, 1, 2, 2).mask(); },
     {"buffer 'block_mask' of a block mask is u8[1, 1]", "accepted is [4, 4]"}},
    {"OneRowOfBlocksOfOneScore",
     dense_call,
     [](Call& c) { c.problem.mask = BlockMask(1, kSeqlenK, 1, 1).mask(); },
     {"buffer 'block_mask' of a block mask is u8[1, 7]", "accepted is [7, 7]"}},
    {"UnknownBuffer",
     dense_call,
     [](Call& c) {
       c.in.buffers = {{"slopes", c.in.sink}};
     },
     {"buffers names 'slopes'", "'bias'"}},
    {"BufferTwice",
     dense_call,
     [](Call& c) {
       const Tensor b = c.zeros(DType::f32, {1, 4, 5, 7});
       c.in.buffers = {{"bias", b}, {"bias", b}};
     },
     {"'bias' twice"}},
    {"BufferOnDevice",
     dense_call,
     [](Call& c) {
       Tensor b = c.zeros(DType::f32, {1, 4, 5, 7});
       b.device.type = DeviceType::cuda;
       c.in.buffers = {{"bias", b}};
     },
     {"buffer 'bias' is", "cuda:0"}},
    {"GradientOfUnknownBuffer",
     dense_call,
     [](Call& c) { c.grad.buffers[0].first = "slopes"; },
     {"gradient of buffer 'slopes'"},
     kBackward},
    {"GradientOfScalar",
     dense_call,
     [](Call& c) {
       c.problem.score = expr::symbols().score * expr::scalar("w", 0.5);
       c.in.buffers.clear();
       c.grad.buffers[0].first = "w";
     },
     {"gradient of buffer 'w'", "are no scalars"},
     kBackward},
    {"GradientOfBufferShape",
     dense_call,
     [](Call& c) { c.grad.buffers[0].second.shape[0] = 2; },
     {"gradient of buffer 'bias' is f32[2, 4, 5, 7]", "f32[1, 4, 5, 7]"},
     kBackward},
    {"GradientOfBufferTwice",
     dense_call,
     [](Call& c) { c.grad.buffers.push_back(c.grad.buffers[0]); },
     {"'bias' is asked for twice"},
     kBackward},
};

INSTANTIATE_TEST_SUITE_P(Problems, Refusals, ::testing::ValuesIn(kProblems), title);

}  // namespace
}  // namespace attn::testing
