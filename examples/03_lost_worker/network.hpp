#pragma once

// A small convolutional network: 8 filters of 3 x 3, ReLU, 2 x 2 max pooling, 64 hidden units, 10
// classes. Parameters and gradients are plain vectors, as a trainer of one's own has them.

#include "fashion.hpp"

#define EIGEN_DONT_PARALLELIZE
#include <Eigen/Core>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

class Network {
 public:
  struct Tensor {
    std::string name;
    std::vector<std::int64_t> shape;
    std::vector<float> value, gradient;
  };
  std::vector<Tensor> tensors;

  explicit Network(std::uint64_t seed) {
    add("conv.weight", {taps, filters}, taps, seed);
    add("conv.bias", {filters}, 0, seed);
    add("hidden.weight", {flat, hidden}, flat, seed);
    add("hidden.bias", {hidden}, 0, seed);
    add("out.weight", {hidden, classes}, hidden, seed);
    add("out.bias", {classes}, 0, seed);
  }

  // Fills the gradients of the mean loss over the chosen images, and returns it.
  float forward_backward(const Images& images, const std::vector<std::size_t>& batch) {
    auto n = static_cast<Index>(batch.size());
    for (Index i = 0; i < 6; ++i) grad(i).setZero();
    features_.resize(n, flat);
    std::vector<Activations> kept(batch.size());
    for (Index i = 0; i < n; ++i) convolve(images, batch[size_t(i)], i, &kept[size_t(i)]);
    Matrix h = ((features_ * value(2)).rowwise() + value(3).row(0)).cwiseMax(0.0f);
    Matrix scores = (h * value(4)).rowwise() + value(5).row(0);
    float loss = 0;
    for (Index i = 0; i < n; ++i) {  // softmax and cross entropy, the gradient left in scores
      scores.row(i).array() -= scores.row(i).maxCoeff();
      scores.row(i) = scores.row(i).array().exp();
      scores.row(i) /= scores.row(i).sum();
      Index label = images.labels[batch[size_t(i)]];
      loss -= std::log(scores(i, label) + 1e-9f) / float(n);
      scores(i, label) -= 1;
    }
    scores /= float(n);
    grad(4).noalias() = h.transpose() * scores;
    grad(5) = scores.colwise().sum();
    Matrix back = scores * value(4).transpose();
    back = (h.array() > 0).select(back, 0.0f);
    grad(2).noalias() = features_.transpose() * back;
    grad(3) = back.colwise().sum();
    Matrix to_features = back * value(2).transpose();
    for (Index i = 0; i < n; ++i) {
      Matrix d = Matrix::Zero(positions, filters);
      for (Index j = 0; j < flat; ++j)
        if (features_(i, j) > 0)
          d(kept[size_t(i)].from[size_t(j)], j % filters) += to_features(i, j);
      grad(0).noalias() += kept[size_t(i)].patches.transpose() * d;
      grad(1) += d.colwise().sum();
    }
    return loss;
  }

  // The share of the first `count` images that are classified right.
  float accuracy(const Images& images, std::size_t count) {
    count = std::min(count, images.size());
    std::size_t right = 0;
    for (std::size_t begin = 0; begin < count; begin += 100) {
      auto n = static_cast<Index>(std::min<std::size_t>(100, count - begin));
      features_.resize(n, flat);
      for (Index i = 0; i < n; ++i) convolve(images, begin + size_t(i), i, nullptr);
      Matrix h = ((features_ * value(2)).rowwise() + value(3).row(0)).cwiseMax(0.0f);
      Matrix scores = (h * value(4)).rowwise() + value(5).row(0);
      for (Index i = 0; i < n; ++i) {
        Index best = 0;
        scores.row(i).maxCoeff(&best);
        right += best == images.labels[begin + size_t(i)];
      }
    }
    return float(right) / float(count);
  }

 private:
  using Matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
  using Index = Eigen::Index;
  static constexpr Index taps = 9, filters = 8, hidden = 64, classes = 10, in = 28, mid = 26,
                         pooled = 13, positions = mid * mid, flat = pooled * pooled * filters;

  struct Activations {
    Matrix patches;           // positions x taps
    std::vector<Index> from;  // which position won the pooling, per feature
  };

  // A number in [-1, 1) that depends on its index alone: the same on every machine and rank.
  static float number(std::uint64_t index) {
    std::uint64_t z = index * 0x9e3779b97f4a7c15ULL;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
    return float(z >> 40) / float(1 << 23) - 1;
  }
  void add(std::string name, std::vector<std::int64_t> shape, Index inputs, std::uint64_t seed) {
    std::size_t n = 1;
    for (std::int64_t extent : shape) n *= static_cast<std::size_t>(extent);
    Tensor t{std::move(name), std::move(shape), std::vector<float>(n), std::vector<float>(n)};
    if (inputs > 0)
      for (std::size_t i = 0; i < n; ++i)
        t.value[i] =
            number(seed * 1'000'003 + tensors.size() * 100'003 + i) * std::sqrt(6 / float(inputs));
    tensors.push_back(std::move(t));
  }

  Eigen::Map<Matrix> map(Tensor& t, std::vector<float>& data) const {
    return {data.data(), t.shape.size() > 1 ? Index(t.shape[0]) : 1, Index(t.shape.back())};
  }
  Eigen::Map<Matrix> value(Index i) { return map(tensors[size_t(i)], tensors[size_t(i)].value); }
  Eigen::Map<Matrix> grad(Index i) { return map(tensors[size_t(i)], tensors[size_t(i)].gradient); }

  // Convolution, ReLU and pooling of one image into row `row` of features_.
  void convolve(const Images& images, std::size_t image, Index row, Activations* keep) {
    const std::uint8_t* p = images.pixels.data() + image * Images::pixels_each;
    Matrix patches(positions, taps);
    for (Index y = 0; y < mid; ++y)
      for (Index x = 0; x < mid; ++x)
        for (Index k = 0; k < taps; ++k)
          patches(y * mid + x, k) = float(p[(y + k / 3) * in + x + k % 3]) / 255 - 0.5f;
    Matrix maps = (patches * value(0)).rowwise() + value(1).row(0);
    if (keep != nullptr) keep->from.resize(size_t(flat));
    for (Index y = 0; y < pooled; ++y)
      for (Index x = 0; x < pooled; ++x)
        for (Index f = 0; f < filters; ++f) {
          Index best = 2 * y * mid + 2 * x;
          for (Index at : {best + 1, best + mid, best + mid + 1})
            if (maps(at, f) > maps(best, f)) best = at;
          Index feature = (y * pooled + x) * filters + f;
          features_(row, feature) = std::max(maps(best, f), 0.0f);
          if (keep != nullptr) keep->from[size_t(feature)] = best;
        }
    if (keep != nullptr) keep->patches = std::move(patches);
  }

  Matrix features_;
};
