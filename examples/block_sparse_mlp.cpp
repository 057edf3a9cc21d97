// A layer with a block-sparse weight (FlashAttention paper, appendix D.2), from attn::matmul:
//   Y = relu(X W + b), dZ = dY where Y > 0, dX = dZ W^T, dW = X^T dZ, db = sums of dZ's columns
// where a block mask says which blocks of kBlock x kBlock of W exist. X W and dZ W^T multiply the
// blocks of W that are there, X^T dZ computes the blocks of dW that are: three products with one
// mask, transposed where W is. Each density runs beside the dense layer, which is the same without
// a mask; all five results of both are compared with fp64, and times with the density's share of
// the dense layer's.
//   example_block_sparse_mlp [ROWS OF X] [WIDTH] [ROUNDS]
#include <algorithm>
#include <attn/attn.hpp>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <random>
#include <utility>
#include <vector>

namespace {

constexpr std::int64_t kBlock = 256;
constexpr double kTolerance = 1e-5;

using Values = std::vector<float>;

attn::Tensor matrix(Values& x, std::int64_t columns) {
  return attn::tensor(x.data(), {std::int64_t(x.size()) / columns, columns});
}

// Of blocks x blocks, count in each row and column, evenly apart. Rows are shuffled, even ones
// first, so that the mask is not its own transpose.
std::vector<std::uint8_t> spread_out(std::int64_t blocks, std::int64_t count) {
  std::vector<std::uint8_t> mask(blocks * blocks);
  for (std::int64_t i = 0; i < blocks; ++i) {
    const std::int64_t first = i / 2 + i % 2 * (blocks / 2);
    for (std::int64_t s = 0; s < count; ++s) {
      mask[i * blocks + (first + s * (blocks / count)) % blocks] = 1;
    }
  }
  return mask;
}

// dZ = dY where Y > 0, and the sums of its columns.
void activation_gradient(const Values& y, const Values& dy, Values& dz, Values& db) {
  std::fill(db.begin(), db.end(), 0.0F);
  float* sums = db.data();
  for (std::size_t row = 0; row < y.size(); row += db.size()) {
    const float *out = &y[row], *gradient = &dy[row];
    float* to = &dz[row];
    for (std::size_t c = 0; c < db.size(); ++c) {
      const float given = gradient[c];  // whatever Y is, so that compilers make vectors of it
      to[c] = out[c] > 0 ? given : 0;
      sums[c] += to[c];
    }
  }
}

// width x width weights; an empty mask: dense.
class Layer {
 public:
  Layer(Values weight, Values bias_of_columns, std::vector<std::uint8_t> blocks, std::int64_t rows)
      : w(std::move(weight)),
        bias(std::move(bias_of_columns)),
        dw(w.size()),
        db(bias.size()),
        mask(std::move(blocks)),
        width_(std::int64_t(bias.size())) {
    attn::MatmulProblem forward{.m = rows, .n = width_, .k = width_, .bias = true};
    forward.activation = attn::Activation::relu;
    attn::MatmulProblem dx{.m = rows, .n = width_, .k = width_};
    dx.order_b = attn::MatrixOrder::column_major;
    attn::MatmulProblem gradient{.m = width_, .n = width_, .k = rows};
    gradient.order_a = attn::MatrixOrder::column_major;
    if (!mask.empty()) {
      mask_ = attn::tensor(mask.data(), {width_ / kBlock, width_ / kBlock});
      forward.masked = dx.masked = attn::MaskedMatrix::b;
      gradient.masked = attn::MaskedMatrix::c;
      for (attn::MatmulProblem* p : {&forward, &dx, &gradient}) p->block = kBlock;
    }
    forward_ = attn::make_plan(forward);
    dx_ = attn::make_plan(dx);
    dw_ = attn::make_plan(gradient);
  }

  // x, y: [rows][width].
  void forward(Values& x, Values& y) {
    attn::matmul(forward_,
                 {.a = matrix(x, width_),
                  .b = matrix(w, width_),
                  .bias = attn::tensor(bias.data(), {width_}),
                  .block_mask = mask_},
                 matrix(y, width_));
  }
  // dz, dx, and the members dw and db.
  void backward(Values& x, const Values& y, const Values& dy, Values& dz, Values& dx) {
    activation_gradient(y, dy, dz, db);
    const attn::Tensor turned = mask.empty() ? mask_ : attn::transposed(mask_);
    attn::matmul(
        dx_,
        {.a = matrix(dz, width_), .b = attn::transposed(matrix(w, width_)), .block_mask = turned},
        matrix(dx, width_));
    attn::matmul(
        dw_,
        {.a = attn::transposed(matrix(x, width_)), .b = matrix(dz, width_), .block_mask = mask_},
        matrix(dw, width_));
  }

  Values w, bias, dw, db;
  std::vector<std::uint8_t> mask;

 private:
  std::int64_t width_;
  attn::Tensor mask_;
  attn::MatmulPlan forward_, dx_, dw_;
};

// Some elements of each result in fp64: the largest error as a share of the square root of the
// terms, which is their size. dZ counts as wrong where fp64 is sure of Y's sign and dZ is not dY or
// 0 accordingly.
double largest_error(const Layer& layer, const Values& x, const Values& dy, const Values& y,
                     const Values& dz, const Values& dx, std::mt19937& random) {
  const auto width = std::int64_t(layer.bias.size()), rows = std::int64_t(x.size()) / width;
  const std::int64_t blocks = width / kBlock;
  const auto there = [&](std::int64_t i, std::int64_t c) {
    return layer.mask.empty() || layer.mask[i / kBlock * blocks + c / kBlock] != 0;
  };
  double error = 0;
  const auto compare = [&](double got, double expected, double terms) {
    const double share = std::abs(got - expected) / std::sqrt(terms);
    error = std::isfinite(share) ? std::max(error, share) : INFINITY;
  };
  for (int sample = 0; sample < 300; ++sample) {
    const auto i = std::int64_t(random() % rows), c = std::int64_t(random() % width),
               q = std::int64_t(random() % width);
    double value = layer.bias[c], gradient = 0, weight = 0, sum = 0;
    std::int64_t terms = 0, terms_of_gradient = 0;
    for (std::int64_t k = 0; k < width; ++k) {
      if (there(k, c)) value += double{x[i * width + k]} * layer.w[k * width + c], ++terms;
      if (!there(c, k)) continue;
      gradient += double{dz[i * width + k]} * layer.w[c * width + k];
      ++terms_of_gradient;
    }
    for (std::int64_t row = 0; row < rows; ++row) {
      if (there(q, c)) weight += double{x[row * width + q]} * dz[row * width + c];
      sum += dz[row * width + c];
    }
    compare(y[i * width + c], std::max(value, 0.0), double(terms));
    if (std::abs(value) > kTolerance * std::sqrt(double(terms))) {
      compare(dz[i * width + c], value > 0 ? dy[i * width + c] : 0, 1);
    }
    compare(dx[i * width + c], gradient, double(terms_of_gradient));
    compare(layer.dw[q * width + c], weight, double(rows));
    compare(layer.db[c], sum, double(rows));
  }
  return error;
}

// CPU time of all threads: what others on the machine do does not add to it.
double seconds(const auto& call) {
  const std::clock_t begin = std::clock();
  call();
  return double(std::clock() - begin) / CLOCKS_PER_SEC;
}
double median(std::vector<double> x) {
  std::nth_element(x.begin(), x.begin() + std::ptrdiff_t(x.size() / 2), x.end());
  return x[x.size() / 2];
}

}  // namespace

int main(int argc, char** argv) {
  const std::int64_t rows = argc > 1 ? std::atoll(argv[1]) : 512;
  const std::int64_t width = argc > 2 ? std::atoll(argv[2]) : 4096;
  const int rounds = argc > 3 ? std::atoi(argv[3]) : 3;
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  const auto draw = [&](std::int64_t count) {
    Values x(count);
    for (float& value : x) value = normal(random);
    return x;
  };
  Values x = draw(rows * width), dy = draw(rows * width);
  const Values w = draw(width * width), bias = draw(width);
  Layer dense(w, bias, {}, rows);
  bool correct = true;
  std::printf("%8s %10s %24s %24s %16s\n", "density", "", "CPU ms", "share of dense's time",
              "error, of largest");
  const std::int64_t blocks = width / kBlock;
  for (std::int64_t part = 2; part <= blocks && part <= 16; part *= 2) {
    Layer layer(w, bias, spread_out(blocks, blocks / part), rows);
    Values y(x.size(), NAN), dz(y), dx(y), other(y), other_dz(y), other_dx(y);
    std::vector<double> times[4];
    for (int round = 0; round < rounds; ++round) {
      times[0].push_back(seconds([&] { dense.forward(x, other); }));
      times[1].push_back(seconds([&] { layer.forward(x, y); }));
      times[2].push_back(seconds([&] { dense.backward(x, other, dy, other_dz, other_dx); }));
      times[3].push_back(seconds([&] { layer.backward(x, y, dy, dz, dx); }));
    }
    const double error = largest_error(layer, x, dy, y, dz, dx, random);
    const double of_dense = largest_error(dense, x, dy, other, other_dz, other_dx, random);
    correct = correct && error < kTolerance && of_dense < kTolerance;
    const char* const names[] = {"forward", "backward"};
    for (int phase = 0; phase < 2; ++phase) {
      const double whole = median(times[2 * phase]), some = median(times[2 * phase + 1]);
      std::printf("    1/%-2lld %10s %10.1f of %10.1f %24.2f %16.1g\n", (long long)part,
                  names[phase], some * 1e3, whole * 1e3, some / whole * double(part),
                  std::max(error, of_dense));
    }
  }
  return correct ? 0 : 1;
}
