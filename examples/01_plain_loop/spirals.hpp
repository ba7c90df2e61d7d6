#pragma once

// Two interleaved spirals and a small network that tells them apart: enough to watch a loss fall.

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

struct Point {
  float x, y, label;
};

// A random number in [0, 1) that depends on its index alone: the same on every machine and rank.
inline float number(std::uint64_t index) {
  std::uint64_t z = index * 0x9e3779b97f4a7c15ULL + 0x632be59bd9b4e019ULL;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
  return float(z >> 40) / float(1 << 24);
}

inline Point point(std::uint64_t index) {
  float t = 1 + 5 * number(3 * index), side = float(index % 2);
  float angle = t + 3.14159265f * side;
  return {t * std::cos(angle) / 6 + 0.02f * number(3 * index + 1),
          t * std::sin(angle) / 6 + 0.02f * number(3 * index + 2), side};
}

// This rank's share of the step's 96 points.
inline std::vector<Point> batch(std::int64_t step, int rank, int size) {
  std::vector<Point> points;
  for (int i = rank; i < 96; i += size)
    points.push_back(point(std::uint64_t(step) * 96 + std::uint64_t(i)));
  return points;
}

class Network {
 public:
  static constexpr std::size_t hidden = 24;
  std::vector<float> parameters, gradients;

  Network() : parameters(count), gradients(count) {
    for (std::size_t i = 0; i < count; ++i) parameters[i] = number(1'000'000'007 + i) - 0.5f;
  }

  // Fills the gradients of the mean loss; returns it.
  float forward_backward(const std::vector<Point>& points) {
    gradients.assign(count, 0);
    float loss = 0, scale = 1 / float(points.size());
    for (const Point& p : points) {
      std::array<float, hidden> a, b;
      float error = sigmoid(forward(p, a, b)) - p.label;
      loss -= scale * std::log(1 - std::abs(error) + 1e-7f);
      error *= scale;
      std::array<float, hidden> back{};
      for (std::size_t j = 0; j < hidden; ++j) {
        gradients[out + j] += error * b[j];
        float d = error * parameters[out + j] * (1 - b[j] * b[j]);
        gradients[bias2 + j] += d;
        for (std::size_t i = 0; i < hidden; ++i) {
          gradients[second + j * hidden + i] += d * a[i];
          back[i] += d * parameters[second + j * hidden + i];
        }
      }
      gradients[count - 1] += error;
      for (std::size_t i = 0; i < hidden; ++i) {
        float d = back[i] * (1 - a[i] * a[i]);
        gradients[3 * i] += 3 * d * p.x;
        gradients[3 * i + 1] += 3 * d * p.y;
        gradients[3 * i + 2] += d;
      }
    }
    return loss;
  }

  float accuracy() const {
    int right = 0;
    for (std::uint64_t i = 0; i < 1000; ++i) {
      std::array<float, hidden> a, b;
      Point p = point(1'000'000'000 + i);
      right += (forward(p, a, b) > 0) == (p.label > 0.5f);
    }
    return float(right) / 1000;
  }

 private:
  // Layout: first layer (3 per unit), second layer, its biases, output weights, output bias.
  static constexpr std::size_t second = 3 * hidden, bias2 = second + hidden * hidden,
                               out = bias2 + hidden, count = out + hidden + 1;

  static float sigmoid(float x) { return 1 / (1 + std::exp(-x)); }
  float forward(const Point& p, std::array<float, hidden>& a, std::array<float, hidden>& b) const {
    const std::vector<float>& w = parameters;
    for (std::size_t i = 0; i < hidden; ++i)
      a[i] = std::tanh(3 * (w[3 * i] * p.x + w[3 * i + 1] * p.y) + w[3 * i + 2]);
    float y = w[count - 1];
    for (std::size_t j = 0; j < hidden; ++j) {
      float z = w[bias2 + j];
      for (std::size_t i = 0; i < hidden; ++i) z += w[second + j * hidden + i] * a[i];
      b[j] = std::tanh(z);
      y += w[out + j] * b[j];
    }
    return y;
  }
};
