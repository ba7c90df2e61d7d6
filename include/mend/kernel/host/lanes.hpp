#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>

#include "mend/config.hpp"

// An operator is callable where the rules are: in kernels too, given a set with device functions.
#if defined(__CUDACC__)
#define MEND_LANES _Pragma("nv_exec_check_disable") __host__ __device__
#else
#define MEND_LANES
#endif

namespace mend::kernel {

//! The answer of a comparison, one per lane.
template <class T, class Set>
struct LanesMask {
  typename Set::template Mask<T> pack;
};

//! The number that rules compute with: `Set::width<T>` values of T (float or double) that go
//! through the same operations in the arithmetic of one instruction set. Every operation is rounded
//! once, to nearest even, under any compiler flags: a product is never fused with the sum that
//! follows it unless the rule says fma. So one expression gives the same bits in one lane, in
//! sixteen, and on every machine; only the payload of a NaN may differ (kernel::apply writes one
//! NaN, so that not even that is seen).
//!
//! Beside Lanes, every operator takes a float, a double or an int on either side; it is rounded
//! once to T and stands in every lane.
template <class T, class Set>
class Lanes {
  static_assert(std::same_as<T, float> || std::same_as<T, double>,
                "Lanes compute in float or double");

 public:
  using Mask = LanesMask<T, Set>;
  static constexpr std::size_t width = Set::template width<T>;

  Lanes() = default;
  MEND_LANES Lanes(float value) : pack_{Set::template all<T>(static_cast<T>(value))} {}   // NOLINT
  MEND_LANES Lanes(double value) : pack_{Set::template all<T>(static_cast<T>(value))} {}  // NOLINT
  MEND_LANES Lanes(int value) : pack_{Set::template all<T>(static_cast<T>(value))} {}     // NOLINT

  MEND_LANES Lanes(const Lanes& other) { Set::copy(pack_, other.pack_); }
  MEND_LANES Lanes& operator=(const Lanes& other) {
    Set::copy(pack_, other.pack_);
    return *this;
  }

  //! `width` values from, or to, memory aligned for T.
  MEND_LANES static Lanes load(const T* from) { return of(Set::load(from)); }
  MEND_LANES void store(T* to) const { Set::store(to, pack_); }

  //! `width` bf16 or f16 bit patterns, from or to memory; rounded to nearest even. Floats only.
  MEND_LANES static Lanes load_bf16(const std::uint16_t* from) { return of(Set::load_bf16(from)); }
  MEND_LANES static Lanes load_f16(const std::uint16_t* from) { return of(Set::load_f16(from)); }
  MEND_LANES void store_bf16(std::uint16_t* to) const { Set::store_bf16(to, pack_); }
  MEND_LANES void store_f16(std::uint16_t* to) const { Set::store_f16(to, pack_); }
  //! `width` floats as doubles. Doubles only.
  MEND_LANES static Lanes load_float(const float* from) { return of(Set::load_float(from)); }

  MEND_LANES friend Lanes operator+(const Lanes& a, const Lanes& b) {
    return of(Set::add(a.pack_, b.pack_));
  }
  MEND_LANES friend Lanes operator-(const Lanes& a, const Lanes& b) {
    return of(Set::sub(a.pack_, b.pack_));
  }
  MEND_LANES friend Lanes operator*(const Lanes& a, const Lanes& b) {
    return of(Set::mul(a.pack_, b.pack_));
  }
  MEND_LANES friend Lanes operator/(const Lanes& a, const Lanes& b) {
    return of(Set::div(a.pack_, b.pack_));
  }
  MEND_LANES friend Lanes operator-(const Lanes& a) { return of(Set::neg(a.pack_)); }

  //! a * b + c, rounded once.
  MEND_LANES friend Lanes fma(const Lanes& a, const Lanes& b, const Lanes& c) {
    return of(Set::fma(a.pack_, b.pack_, c.pack_));
  }
  MEND_LANES friend Lanes sqrt(const Lanes& a) { return of(Set::sqrt(a.pack_)); }
  MEND_LANES friend Lanes abs(const Lanes& a) { return of(Set::abs(a.pack_)); }
  //! The magnitude of a, the sign of b. A NaN counts as positive: its sign differs between
  //! machines.
  MEND_LANES friend Lanes copysign(const Lanes& a, const Lanes& b) {
    return of(Set::copysign(a.pack_, select(b == b, b, Lanes{0}).pack_));
  }
  //! `a < b ? b : a`, `b < a ? b : a`: where one is a NaN, or for zeros of both signs, the first.
  MEND_LANES friend Lanes max(const Lanes& a, const Lanes& b) { return select(a < b, b, a); }
  MEND_LANES friend Lanes min(const Lanes& a, const Lanes& b) { return select(b < a, b, a); }

  MEND_LANES friend Mask operator<(const Lanes& a, const Lanes& b) {
    return {Set::less(a.pack_, b.pack_)};
  }
  MEND_LANES friend Mask operator>(const Lanes& a, const Lanes& b) {
    return {Set::less(b.pack_, a.pack_)};
  }
  MEND_LANES friend Mask operator<=(const Lanes& a, const Lanes& b) {
    return {Set::less_equal(a.pack_, b.pack_)};
  }
  MEND_LANES friend Mask operator>=(const Lanes& a, const Lanes& b) {
    return {Set::less_equal(b.pack_, a.pack_)};
  }
  MEND_LANES friend Mask operator==(const Lanes& a, const Lanes& b) {
    return {Set::equal(a.pack_, b.pack_)};
  }
  //! Per lane: where `which` holds a, elsewhere b. Both are computed; there are no branches per
  //! lane.
  MEND_LANES friend Lanes select(const Mask& which, const Lanes& a, const Lanes& b) {
    return of(Set::select(which.pack, a.pack_, b.pack_));
  }

  //! What the set computes with, for kernels.
  using Pack = typename Set::template Pack<T>;
  MEND_LANES static Lanes of(const Pack& pack) {
    Lanes lanes;
    Set::copy(lanes.pack_, pack);
    return lanes;
  }
  MEND_LANES const Pack& pack() const { return pack_; }

 private:
  Pack pack_;
};

}  // namespace mend::kernel

#undef MEND_LANES
