#pragma once

#include <mend/core/bytes.hpp>
#include <mend/core/dtype.hpp>
#include <mend/core/hash.hpp>
#include <mend/core/step.hpp>
#include <mend/core/train_state.hpp>
#include <mend/kernel/host/half.hpp>
#include <mend/session/committed.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace mend_test {

//! A user's own 16-bit type, as mend is told about it.
struct BFloat16 {
  std::uint16_t bits = 0;

  static BFloat16 of(float value) { return {mend::kernel::float_to_bf16(value)}; }
  [[nodiscard]] float value() const { return mend::kernel::bf16_to_float(bits); }
};

}  // namespace mend_test

template <>
inline constexpr mend::DType mend::dtype_of<mend_test::BFloat16> = mend::DType::bf16;

namespace mend_test {

//! splitmix64: one number of state, the same sequence on every machine.
struct Random {
  std::uint64_t state;

  std::uint64_t operator()(std::uint64_t below) { return next() % below; }
  std::uint64_t next() {
    state += 0x9e3779b97f4a7c15;
    return mend::detail::mix(state);
  }
};

//! The hash of everything that was registered, optimizer slots and per-rank parts too.
inline mend::Hash128 hash_of(const mend::TrainState::Entry& e) {
  mend::StateHash hash;
  if (e.kind == mend::TrainState::Kind::state)
    hash.add(e.name, e.dtype, mend::hash_bytes(e.save()));
  else
    hash.add(e.name, e.dtype, mend::ByteView{e.value, e.bytes()});
  for (const mend::TrainState::Copy& c : e.copies)
    hash.add(e.name, c.dtype, mend::ByteView{c.data, e.count * size_of(c.dtype)});
  return hash.value();
}
inline mend::Hash128 hash_of(const mend::TrainState& state) {
  mend::StateHash all;
  for (const mend::TrainState::Entry& e : state.entries()) all.add(hash_of(e));
  return all.value();
}

//! A trainer that is stateful on purpose: whatever a repeated step could get wrong is in it.
//!
//! A token's embedding goes through one of four linear experts (float master, bf16 gradient, bf16
//! copy), batch normalisation with running statistics of this rank, a rectifier and an output layer
//! in double;
//! the target is another token's embedding, under the tied name "head". Noise is drawn from this
//! rank's generator, samples from this rank's loader, which shuffles anew when it runs out;
//! gradients accumulate over two micro-batches. Three buckets of one large tensor, one of several
//! small ones, and `extra` more large ones.
class Trainer {
 public:
  struct Options {
    int extra = 0;
    int copies = 1;           //!< partners that hold the per-rank state
    bool own_update = false;  //!< register the state of an optimizer of the trainer's own
  };

  Trainer(int rank, Options options) : loader_{static_cast<std::uint64_t>(rank)} {
    rng_ = 1000 + static_cast<std::uint64_t>(rank);
    fill(embedding_, 1, 0.5);
    fill(linear_, 2, 0.2);
    fill(output_, 3, 0.2);
    gamma_.fill(1);
    for (std::size_t i = 0; i < linear_.size(); ++i) low_[i] = BFloat16::of(linear_[i]);
    const mend::PerRank per_rank{.copies = options.copies};
    state.add("embedding", embedding_, embedding_gradient_, {.shape = {vocabulary, width}})
        .add("head", embedding_, embedding_gradient_, {.shape = {vocabulary, width}})
        .add("linear", linear_, linear_gradient_, {.shape = {experts, width, hidden}})
        .add_copy("linear", low_)
        .add_buffer("bn.mean", mean_, per_rank)
        .add("bn.gamma", gamma_, gamma_gradient_)
        .add("bn.beta", beta_, beta_gradient_)
        .add("empty", empty_, empty_)
        .add_buffer("bn.variance", variance_, per_rank)
        .add("output", output_, output_gradient_, {.shape = {outputs, hidden}})
        .add("bias", bias_, bias_gradient_)
        .add_buffer("visits", visits_)
        .add_scalar("rng", rng_, per_rank)
        .add_scalar("best", best_)
        .add_scalar("trail", trail_)
        .add_state(
            "loader", [this] { return loader_.save(); },
            [this](mend::ByteView saved) { loader_.load(saved); }, per_rank)
        .add_state(
            "curriculum", [this] { return save(curriculum_); },
            [this](mend::ByteView saved) { load(curriculum_, saved); }, mend::Replicated{});
    if (options.own_update)
      state.add_buffer("own.velocity", velocity_, mend::Replicated{}, {.before_image = false})
          .add_state(
              "own.updates", [this] { return save(updates_); },
              [this](mend::ByteView saved) { load(updates_, saved); }, mend::Replicated{});
    extra_.resize(static_cast<std::size_t>(options.extra));
    for (std::size_t i = 0; i < extra_.size(); ++i) {
      fill(extra_[i].value, 10 + i, 1);
      state.add("extra." + std::to_string(i), extra_[i].value, extra_[i].gradient);
    }
  }
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  //! Fills the gradients and returns the loss; ready(name) is called as soon as one is final.
  template <class Ready>
  float step(mend::Step step, Ready&& ready) {
    curriculum_.push_back(static_cast<std::int32_t>(step.value() * 7 + 1));
    visits_[static_cast<std::size_t>(step.value()) % visits_.size()] +=
        static_cast<std::int64_t>(curriculum_.size());
    clear(embedding_gradient_);
    clear(gamma_gradient_);
    clear(beta_gradient_);
    clear(output_gradient_);
    clear(bias_gradient_);
    linear_sum_.fill(0);
    for (std::size_t i = 0; i < low_.size(); ++i) wide_[i] = low_[i].value();
    double loss = 0;
    for (int micro = 0; micro < micro_batches; ++micro) {
      loss += forward();
      backward_output();
      if (micro + 1 == micro_batches) {
        ready("output");
        ready("bias");
      }
      backward_norm();
      if (micro + 1 == micro_batches) {
        ready("bn.gamma");
        ready("bn.beta");
        ready("empty");
      }
      backward_linear();
    }
    for (std::size_t i = 0; i < linear_sum_.size(); ++i)
      linear_gradient_[i] = BFloat16::of(linear_sum_[i]);
    ready("linear");
    ready("embedding");
    for (std::size_t i = 0; i < extra_.size(); ++i) {
      float noise = uniform();
      for (std::size_t k = 0; k < large; ++k)
        extra_[i].gradient[k] = extra_[i].value[k] * noise + static_cast<float>(k % 7) * 0.01f;
      ready("extra." + std::to_string(i));
    }
    return static_cast<float>(loss / (micro_batches * batch));
  }

  //! The trainer's own optimizer, for OwnUpdate.
  void update(mend::Step step) {
    updates_.push_back(static_cast<std::int32_t>(step.value()));
    const float rate = 0.01f / static_cast<float>(updates_.size());
    for (std::size_t i = 0; i < embedding_.size(); ++i) {
      velocity_[i] = 0.9f * velocity_[i] + embedding_gradient_[i];
      embedding_[i] -= rate * velocity_[i];
    }
    for (std::size_t i = 0; i < linear_.size(); ++i)
      linear_[i] -= rate * linear_gradient_[i].value();
    for (std::size_t i = 0; i < output_.size(); ++i)
      output_[i] -= static_cast<double>(rate) * output_gradient_[i];
    for (std::size_t i = 0; i < gamma_.size(); ++i) gamma_[i] -= rate * gamma_gradient_[i];
  }

  //! What a trainer does after a commit: keeps the best loss, and here a trail of all it was told.
  void after(const mend::Committed& done) {
    best_ = std::min(best_, done.loss);
    for (std::uint64_t x : {static_cast<std::uint64_t>(done.step.value()),
                            std::uint64_t{std::bit_cast<std::uint32_t>(done.loss)},
                            std::uint64_t{std::bit_cast<std::uint32_t>(done.gradient_norm)},
                            std::uint64_t{std::bit_cast<std::uint32_t>(done.learning_rate)},
                            std::uint64_t{done.skipped}})
      trail_ = mend::detail::mix(trail_ ^ x);
  }

  mend::TrainState state;

 private:
  static constexpr std::size_t vocabulary = 256, width = 16, hidden = 128, outputs = 16;
  static constexpr std::size_t experts = 4;
  static constexpr std::size_t large = 4096;  // floats: just a bucket of its own
  static constexpr int micro_batches = 2;
  static constexpr std::size_t batch = 2;

  //! Samples in an order that is drawn anew when all were used.
  class Loader {
   public:
    explicit Loader(std::uint64_t rank) : random_{rank * 77 + 5} {}

    std::uint32_t next() {
      if (left_.empty()) {
        for (std::uint32_t i = 0; i < 10; ++i) left_.push_back(i);
        for (std::size_t i = left_.size(); i > 1; --i) std::swap(left_[i - 1], left_[random_(i)]);
      }
      std::uint32_t sample = left_.back();
      left_.pop_back();
      ++position_;
      return sample;
    }
    [[nodiscard]] mend::Bytes save() const {
      mend::ByteWriter w;
      w.put(random_.state).put(position_).put_bytes(std::as_bytes(std::span{left_}));
      return std::move(w).take();
    }
    void load(mend::ByteView saved) {
      mend::ByteReader r{saved};
      random_.state = r.get<std::uint64_t>();
      position_ = r.get<std::uint64_t>();
      mend::ByteView left = r.get_bytes();
      left_.resize(left.size() / sizeof(std::uint32_t));
      if (!left.empty()) std::memcpy(left_.data(), left.data(), left.size());
    }

   private:
    Random random_;
    std::uint64_t position_ = 0;
    std::vector<std::uint32_t> left_;  // of varying size, so that what is saved is too
  };

  struct Sample {
    std::size_t token, target;
    std::array<float, width> x;
    std::array<float, hidden> normal, y;  // normalised; after the rectifier
    std::array<double, outputs> error;
    std::array<float, hidden> gradient;
  };
  struct Extra {
    std::vector<float> value = std::vector<float>(large), gradient = std::vector<float>(large);
  };

  static mend::Bytes save(const std::vector<std::int32_t>& list) {
    auto bytes = std::as_bytes(std::span{list});
    return {bytes.begin(), bytes.end()};
  }
  static void load(std::vector<std::int32_t>& list, mend::ByteView saved) {
    list.resize(saved.size() / sizeof(std::int32_t));
    if (!saved.empty()) std::memcpy(list.data(), saved.data(), saved.size());
  }
  //! Uniform in [-scale, scale).
  template <class T>
  static void fill(std::vector<T>& values, std::uint64_t seed, double scale) {
    Random random{seed};
    for (T& v : values)
      v = static_cast<T>((static_cast<double>(random.next() >> 44) * 0x1p-19 - 1) * scale);
  }
  template <class Range>
  static void clear(Range& values) {
    std::fill(values.begin(), values.end(), 0);
  }
  float uniform() {
    Random random{rng_};
    float value = static_cast<float>(random.next() >> 44) * 0x1p-20f;
    rng_ = random.state;
    return value;
  }

  //! Where the weights of the expert that this token goes to begin.
  static std::size_t expert(const Sample& s) { return s.token % experts * width * hidden; }

  double forward() {
    for (Sample& s : samples_) {
      std::uint32_t id = loader_.next();
      s.token = id * 5 % vocabulary;
      s.target = (id * 11 + 3) % vocabulary;
      for (std::size_t k = 0; k < width; ++k)
        s.x[k] = embedding_[s.token * width + k] + 0.01f * uniform();
      s.normal.fill(0);
      for (std::size_t k = 0; k < width; ++k)
        for (std::size_t h = 0; h < hidden; ++h)
          s.normal[h] += wide_[expert(s) + k * hidden + h] * s.x[k];
    }
    for (std::size_t h = 0; h < hidden; ++h) {
      float mean = 0, variance = 0;
      for (const Sample& s : samples_) mean += s.normal[h] / batch;
      for (const Sample& s : samples_)
        variance += (s.normal[h] - mean) * (s.normal[h] - mean) / batch;
      inverse_[h] = 1 / std::sqrt(variance + 1e-3f);
      for (Sample& s : samples_) {
        s.normal[h] = (s.normal[h] - mean) * inverse_[h];
        s.y[h] = std::max(0.0f, gamma_[h] * s.normal[h] + beta_[h]);
      }
      mean_[h] += 0.1f * (mean - mean_[h]);
      variance_[h] += 0.1f * (variance - variance_[h]);
    }
    double loss = 0;
    for (Sample& s : samples_)
      for (std::size_t o = 0; o < outputs; ++o) {
        double sum = static_cast<double>(bias_[o] - embedding_[s.target * width + o]);
        for (std::size_t h = 0; h < hidden; ++h)
          sum += output_[o * hidden + h] * static_cast<double>(s.y[h]);
        s.error[o] = sum;
        loss += sum * sum / 2;
      }
    return loss;
  }
  void backward_output() {
    for (Sample& s : samples_) {
      s.gradient.fill(0);
      for (std::size_t o = 0; o < outputs; ++o) {
        embedding_gradient_[s.target * width + o] -= static_cast<float>(s.error[o]);
        bias_gradient_[o] += static_cast<float>(s.error[o]);
        for (std::size_t h = 0; h < hidden; ++h) {
          output_gradient_[o * hidden + h] += s.error[o] * static_cast<double>(s.y[h]);
          if (s.y[h] > 0) s.gradient[h] += static_cast<float>(output_[o * hidden + h] * s.error[o]);
        }
      }
    }
  }
  void backward_norm() {
    for (std::size_t h = 0; h < hidden; ++h) {
      float sum = 0, weighted = 0;
      for (const Sample& s : samples_) {
        sum += s.gradient[h];
        weighted += s.gradient[h] * s.normal[h];
      }
      beta_gradient_[h] += sum;
      gamma_gradient_[h] += weighted;
      for (Sample& s : samples_)
        s.gradient[h] = gamma_[h] * inverse_[h] *
                        (s.gradient[h] - sum / batch - s.normal[h] * weighted / batch);
    }
  }
  void backward_linear() {
    for (const Sample& s : samples_)
      for (std::size_t k = 0; k < width; ++k) {
        std::array<float, 8> sum{};
        for (std::size_t h = 0; h < hidden; h += sum.size())
          for (std::size_t lane = 0; lane < sum.size(); ++lane) {
            const std::size_t at = expert(s) + k * hidden + h + lane;
            linear_sum_[at] += s.gradient[h + lane] * s.x[k];
            sum[lane] += wide_[at] * s.gradient[h + lane];
          }
        for (float part : sum) embedding_gradient_[s.token * width + k] += part;
      }
  }

  std::vector<float> embedding_ = std::vector<float>(vocabulary * width),
                     embedding_gradient_ = embedding_;
  std::vector<float> linear_ = std::vector<float>(experts * width * hidden);
  std::vector<BFloat16> low_ = std::vector<BFloat16>(linear_.size()), linear_gradient_ = low_;
  std::vector<double> output_ = std::vector<double>(outputs * hidden), output_gradient_ = output_;
  std::array<float, hidden> gamma_{}, beta_{}, gamma_gradient_{}, beta_gradient_{};
  std::array<float, hidden> mean_{}, variance_{}, inverse_{};
  std::array<float, outputs> bias_{}, bias_gradient_{};
  std::array<float, experts * width * hidden> linear_sum_{}, wide_{};
  std::vector<float> empty_;
  std::vector<Extra> extra_;
  std::array<std::int64_t, 3> visits_{};
  std::array<Sample, batch> samples_{};
  std::vector<std::int32_t> curriculum_, updates_;
  std::vector<float> velocity_ = std::vector<float>(vocabulary * width);
  Loader loader_;
  std::uint64_t rng_, trail_ = 0;
  float best_ = 1e9f;
};

}  // namespace mend_test
