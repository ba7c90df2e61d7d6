#include "kernel/golden.hpp"

#include <doctest/doctest.h>

#include <mend/kernel/cuda/apply.cuh>
#include <mend/kernel/cuda/exact.cuh>
#include <mend/kernel/cuda/reduce.cuh>
#include <mend/kernel/cuda/rule_norms.cuh>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include "cuda/device.hpp"

namespace {

//! A rule on the device: its state is brought there for every call, and back.
template <class T, class R>
class OnCuda {
 public:
  using State = golden::State<T, R>;
  using Coefficients = typename R::Coefficients;

  void apply(const Coefficients& c, State& s, const std::vector<T>& g, T scale) {
    run(s, g, [&](const auto& table) { mend::cuda::apply_async(table, c, scale, stream_); });
  }
  void revert(const Coefficients& c, State& s, const std::vector<T>& g, T scale) {
    run(s, g, [&](const auto& table) { mend::cuda::revert_async(table, c, scale, stream_); });
  }
  auto norms(const Coefficients& c, State& s, const std::vector<T>& g, T scale) {
    std::array<double, R::norms> of;
    run(s, g, [&](const auto& table) {
      mend::cuda::RuleNorms<R, T> norms{table, stream_};
      norms.compute_async(c, scale, stream_);
      of = norms.read(stream_).front();
    });
    return of;
  }
  bool undo(const Coefficients& c, State& s, const State& applied, const std::vector<T>& g,
            T scale) {
    bool same = false;
    run(s, g, [&](const auto& table) {
      mend::cuda::ExactRecord<R, T> record{table, 0, stream_};
      do record.apply_async(c, scale, stream_);
      while (!record.complete(stream_));
      read(s);
      same = s.same(applied);
      record.revert_async(c, scale, stream_);
      stream_.wait();
    });
    return same;
  }
  std::vector<std::uint16_t> narrow(mend::DType type, const std::vector<float>& x) {
    const test::OnDevice<float> wide{x};
    const test::OnDevice<std::uint16_t> low{std::vector<std::uint16_t>(x.size())};
    mend::cuda::from_float_async(type, wide.data(), low.data(), x.size(), stream_);
    return low.read(stream_);
  }

 private:
  template <class Body>
  void run(State& s, const std::vector<T>& g, const Body& body) {
    arrays_.clear();
    for (const auto& array : s.arrays) arrays_.emplace_back(array);
    const test::OnDevice<T> gradient{g};
    mend::cuda::Parameter<R, T> p{
        arrays_[0].data(), {}, gradient.data(), mend::dtype_of<T>, g.size()};
    if constexpr (!R::slots.empty())
      for (std::size_t k = 0; k != R::slots.size(); ++k) p.slots[k] = arrays_[k + 1].data();
    const auto table = mend::cuda::parameters<R, T>({p}, stream_);
    body(table);
    read(s);
  }
  void read(State& s) {
    for (std::size_t k = 0; k < s.arrays.size(); ++k) s.arrays[k] = arrays_[k].read(stream_);
  }

  test::Stream stream_;
  std::vector<test::OnDevice<T>> arrays_;
};

std::set<std::string> golden_lines() {
  const char* tests = std::getenv("MEND_TEST_SOURCES");  // ccache makes __FILE__ relative
  std::ifstream file{(tests != nullptr ? std::filesystem::path{tests}
                                       : std::filesystem::path{__FILE__}.parent_path() / "..") /
                     "kernel/same_bits.txt"};
  std::set<std::string> lines;
  for (std::string line; std::getline(file, line);) lines.insert(line);
  return lines;
}

}  // namespace

TEST_CASE("a thousand steps of every rule on the device have the golden hashes") {
  const std::set<std::string> lines = golden_lines();
  REQUIRE(lines.size() > 30);
  const char* slower = std::getenv("MEND_TEST_SCALE");  // a build that runs some of them
  const int every = slower == nullptr ? 1 : std::max(1, std::atoi(slower));
  int turn = 0;
  golden::each_rule([&]<class R>(const char* name, const R& rule) {
    if (turn++ % every != 0) return;
    OnCuda<float, R> floats;
    OnCuda<double, R> doubles;
    for (const std::string& line :
         {golden::line<float>(name, rule, floats), golden::line<double>(name, rule, doubles)})
      CHECK_MESSAGE(lines.contains(line), line);
  });
}
