#pragma once

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>

#include "mend/config.hpp"
#include "mend/core/bytes.hpp"
#include "mend/core/dtype.hpp"

namespace mend {

static_assert(std::endian::native == std::endian::little,
              "mend stores, sends and hashes little-endian words");

//! 128 bits that stand for some bytes. Two independent sums of 64 bits each: chance collisions have
//! a probability near 2^-64. Finds errors and divergence; it is no defence against forgery.
struct Hash128 {
  std::uint64_t lo = 0, hi = 0;

  friend constexpr bool operator==(const Hash128&, const Hash128&) = default;

  //! 32 digits, hi first.
  [[nodiscard]] std::string to_hex() const {
    std::string text(32, '0');
    for (unsigned i = 0; i < 32; ++i)
      text[i] = "0123456789abcdef"[((i < 16 ? hi : lo) >> (60 - i % 16 * 4)) & 15];
    return text;
  }
};

//! What some of a tensor's 8-byte words add to its hash. Sums of disjoint parts add up to the sum
//! of the whole, in any order and any split: over threads, SIMD lanes, GPU blocks.
//!
//! Word w at index i adds (lo(w) + lo(k)) * (hi(w) + hi(k)) mod 2^64, for both keys k of i: the
//! inner sums mod 2^32 (NH: Black, Halevi, Krawczyk, Krovetz, Rogaway, "UMAC", CRYPTO '99).
struct HashSum {
  std::uint64_t a = 0, b = 0;

  MEND_RULE constexpr HashSum& operator+=(const HashSum& other) {
    a += other.a;
    b += other.b;
    return *this;
  }
  friend constexpr bool operator==(const HashSum&, const HashSum&) = default;

  //! Adds the word at an index: the definition, which every faster path must equal.
  MEND_RULE constexpr void add(std::uint64_t word, std::uint64_t index) {
    a += product(word, key(index * step_a + start_a));
    b += product(word, key(index * step_b + start_b));
  }

  // Odd multipliers and arbitrary starts (digits of the golden ratio, of pi and of sqrt 3).
  static constexpr std::uint64_t step_a = 0x9e3779b97f4a7c15, start_a = 0x243f6a8885a308d3;
  static constexpr std::uint64_t step_b = 0xbb67ae8584caa73b, start_b = 0x13198a2e03707344;

 private:
  //! A counter becomes a key by two products of its halves. One is not enough: neighbours' keys
  //! would still be related, and patterns in the data could cancel.
  MEND_RULE static constexpr std::uint64_t key(std::uint64_t x) {
    std::uint64_t p = (x & 0xffffffff) * (x >> 32);
    x ^= p << 40 | p >> 24;
    p = (x & 0xffffffff) * (x >> 32);
    return x ^ (p << 24 | p >> 40);
  }
  MEND_RULE static constexpr std::uint64_t product(std::uint64_t word, std::uint64_t k) {
    std::uint64_t low = (word + k) & 0xffffffff;
    std::uint64_t high = ((word >> 32) + (k >> 32)) & 0xffffffff;
    return low * high;
  }
};

namespace detail {

inline HashSum hash_words_scalar(const std::byte* data, std::size_t words, std::uint64_t index) {
  HashSum sum;
  for (std::size_t i = 0; i < words; ++i) {
    std::uint64_t word;
    std::memcpy(&word, data + 8 * i, 8);
    sum.add(word, index + i);
  }
  return sum;
}

#if defined(__x86_64__)
// Each lane takes one word of a block; `words` is a multiple of the lane count.
inline constexpr std::size_t ahead = 2048;  // bytes; more in flight than the reorder buffer sees
__attribute__((target("avx2"))) inline HashSum hash_words_avx2(const std::byte* data,
                                                               std::size_t words,
                                                               std::uint64_t index) {
  alignas(32) std::uint64_t lane_a[4], lane_b[4];
  for (std::uint64_t i = 0; i < 4; ++i) {
    lane_a[i] = (index + i) * HashSum::step_a + HashSum::start_a;
    lane_b[i] = (index + i) * HashSum::step_b + HashSum::start_b;
  }
  __m256i xa = _mm256_load_si256(reinterpret_cast<const __m256i*>(lane_a));
  __m256i xb = _mm256_load_si256(reinterpret_cast<const __m256i*>(lane_b));
  const __m256i step_a = _mm256_set1_epi64x(static_cast<long long>(4 * HashSum::step_a));
  const __m256i step_b = _mm256_set1_epi64x(static_cast<long long>(4 * HashSum::step_b));
  __m256i sum_a = _mm256_setzero_si256(), sum_b = _mm256_setzero_si256();
  // Rotations of each word by 5 and by 3 bytes.
  const __m256i rotate_40 = _mm256_setr_epi64x(0x0201000706050403, 0x0a09080f0e0d0c0b,
                                               0x0201000706050403, 0x0a09080f0e0d0c0b);
  const __m256i rotate_24 = _mm256_setr_epi64x(0x0403020100070605, 0x0c0b0a09080f0e0d,
                                               0x0403020100070605, 0x0c0b0a09080f0e0d);
  for (std::size_t i = 0; i < words; i += 4) {
    _mm_prefetch(reinterpret_cast<const char*>(data + 8 * i + ahead), _MM_HINT_T0);
    __m256i w = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(data + 8 * i));
    __m256i pa = _mm256_mul_epu32(xa, _mm256_srli_epi64(xa, 32));
    __m256i pb = _mm256_mul_epu32(xb, _mm256_srli_epi64(xb, 32));
    __m256i ka = _mm256_xor_si256(xa, _mm256_shuffle_epi8(pa, rotate_40));
    __m256i kb = _mm256_xor_si256(xb, _mm256_shuffle_epi8(pb, rotate_40));
    pa = _mm256_mul_epu32(ka, _mm256_srli_epi64(ka, 32));
    pb = _mm256_mul_epu32(kb, _mm256_srli_epi64(kb, 32));
    ka = _mm256_xor_si256(ka, _mm256_shuffle_epi8(pa, rotate_24));
    kb = _mm256_xor_si256(kb, _mm256_shuffle_epi8(pb, rotate_24));
    ka = _mm256_add_epi32(w, ka);
    kb = _mm256_add_epi32(w, kb);
    sum_a = _mm256_add_epi64(sum_a, _mm256_mul_epu32(ka, _mm256_srli_epi64(ka, 32)));
    sum_b = _mm256_add_epi64(sum_b, _mm256_mul_epu32(kb, _mm256_srli_epi64(kb, 32)));
    xa = _mm256_add_epi64(xa, step_a);
    xb = _mm256_add_epi64(xb, step_b);
  }
  _mm256_store_si256(reinterpret_cast<__m256i*>(lane_a), sum_a);
  _mm256_store_si256(reinterpret_cast<__m256i*>(lane_b), sum_b);
  HashSum sum;
  for (int i = 0; i < 4; ++i) sum += {lane_a[i], lane_b[i]};
  return sum;
}

__attribute__((target("avx512f"))) inline HashSum hash_words_avx512(const std::byte* data,
                                                                    std::size_t words,
                                                                    std::uint64_t index) {
  alignas(64) std::uint64_t lane_a[8], lane_b[8];
  for (std::uint64_t i = 0; i < 8; ++i) {
    lane_a[i] = (index + i) * HashSum::step_a + HashSum::start_a;
    lane_b[i] = (index + i) * HashSum::step_b + HashSum::start_b;
  }
  __m512i xa = _mm512_load_si512(lane_a), xb = _mm512_load_si512(lane_b);
  const __m512i step_a = _mm512_set1_epi64(static_cast<long long>(8 * HashSum::step_a));
  const __m512i step_b = _mm512_set1_epi64(static_cast<long long>(8 * HashSum::step_b));
  __m512i sum_a = _mm512_setzero_si512(), sum_b = _mm512_setzero_si512();
  // The zero-masked forms are the plain instructions; the plain forms warn in g++ 12 (PR 105593).
  constexpr __mmask8 all = 0xff;
  for (std::size_t i = 0; i < words; i += 8) {
    _mm_prefetch(reinterpret_cast<const char*>(data + 8 * i + ahead), _MM_HINT_T0);
    __m512i w = _mm512_loadu_si512(data + 8 * i);
    __m512i pa = _mm512_maskz_mul_epu32(all, xa, _mm512_maskz_srli_epi64(all, xa, 32));
    __m512i pb = _mm512_maskz_mul_epu32(all, xb, _mm512_maskz_srli_epi64(all, xb, 32));
    __m512i ka = _mm512_xor_si512(xa, _mm512_maskz_rol_epi64(all, pa, 40));
    __m512i kb = _mm512_xor_si512(xb, _mm512_maskz_rol_epi64(all, pb, 40));
    pa = _mm512_maskz_mul_epu32(all, ka, _mm512_maskz_srli_epi64(all, ka, 32));
    pb = _mm512_maskz_mul_epu32(all, kb, _mm512_maskz_srli_epi64(all, kb, 32));
    ka = _mm512_add_epi32(w, _mm512_xor_si512(ka, _mm512_maskz_rol_epi64(all, pa, 24)));
    kb = _mm512_add_epi32(w, _mm512_xor_si512(kb, _mm512_maskz_rol_epi64(all, pb, 24)));
    ka = _mm512_maskz_mul_epu32(all, ka, _mm512_maskz_srli_epi64(all, ka, 32));
    kb = _mm512_maskz_mul_epu32(all, kb, _mm512_maskz_srli_epi64(all, kb, 32));
    sum_a = _mm512_add_epi64(sum_a, ka);
    sum_b = _mm512_add_epi64(sum_b, kb);
    xa = _mm512_add_epi64(xa, step_a);
    xb = _mm512_add_epi64(xb, step_b);
  }
  _mm512_store_si512(lane_a, sum_a);
  _mm512_store_si512(lane_b, sum_b);
  HashSum sum;
  for (int i = 0; i < 8; ++i) sum += {lane_a[i], lane_b[i]};
  return sum;
}
#endif

//! Invertible, and every bit of x reaches every bit of the result (Stafford's variant 13 of the
//! MurmurHash3 finaliser).
constexpr std::uint64_t mix(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

}  // namespace detail

//! The sum of a part of a tensor that begins `offset` bytes into it; a multiple of 8. Only the part
//! that ends the tensor may have a size that is no multiple of 8: its last word is filled with
//! zeros. Any alignment. Blocks: no. Cost: one pass over memory, AVX-512 or AVX2 chosen at run
//! time.
[[nodiscard]] inline HashSum hash_range(ByteView bytes, std::uint64_t offset = 0) {
  const std::byte* data = bytes.data();
  std::size_t words = bytes.size() / 8, done = 0;
  std::uint64_t index = offset / 8;
  HashSum sum;
#if defined(__x86_64__)
  if (words >= 8 && __builtin_cpu_supports("avx512f")) {
    done = words & ~std::size_t{7};
    sum = detail::hash_words_avx512(data, done, index);
  } else if (words >= 4 && __builtin_cpu_supports("avx2")) {
    done = words & ~std::size_t{3};
    sum = detail::hash_words_avx2(data, done, index);
  }
#endif
  sum += detail::hash_words_scalar(data + 8 * done, words - done, index + done);
  if (std::size_t tail = bytes.size() % 8; tail != 0) {
    std::uint64_t word = 0;
    std::memcpy(&word, data + 8 * words, tail);
    sum.add(word, index + words);
  }
  return sum;
}

//! The hash of `size` bytes whose words add up to `sum`.
[[nodiscard]] constexpr Hash128 finish(HashSum sum, std::uint64_t size, std::uint64_t seed = 0) {
  std::uint64_t x = sum.a ^ detail::mix(size + HashSum::step_a);
  std::uint64_t y = sum.b ^ detail::mix(seed + HashSum::step_b);
  x = detail::mix(x + y);  // each line can be undone, so that no two sums become one hash
  y = detail::mix(y + x);
  x = detail::mix(x + y);
  return {x, y + x};
}

//! The hash of a tensor's bytes; the same on every machine, in any split, on host and device.
[[nodiscard]] inline Hash128 hash_bytes(ByteView bytes, std::uint64_t seed = 0) {
  return finish(hash_range(bytes), bytes.size(), seed);
}

//! Joins hashes into one; their order, names and types count.
class StateHash {
 public:
  void add(Hash128 hash) { state_ = finish({state_.lo ^ hash.lo, state_.hi ^ hash.hi}, ++count_); }
  //! `data`: the hash_bytes of a tensor, wherever it was computed.
  void add(std::string_view name, DType type, Hash128 data) {
    add(hash_bytes(std::as_bytes(std::span{name}), static_cast<std::uint64_t>(type)));
    add(data);
  }
  void add(std::string_view name, DType type, ByteView bytes) {
    add(name, type, hash_bytes(bytes));
  }

  [[nodiscard]] Hash128 value() const { return state_; }

 private:
  Hash128 state_{};
  std::uint64_t count_ = 0;
};

}  // namespace mend
